//! Where checkpoints and data lie: the URLs that a job may name.

/// A folder that a URL names, without asking anybody whether it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location<'a> {
    /// `file:///absolute/folder`.
    File { path: &'a str },
    /// `hdfs://nameservice/absolute/folder`, `hdfs://host/…` or `hdfs://host:port/…`.
    Hdfs { authority: &'a str, path: &'a str },
}

impl<'a> Location<'a> {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// What to write instead.
    pub fn parse(url: &'a str) -> Result<Self, &'static str> {
        if let Some(path) = url.strip_prefix("file://") {
            if !path.starts_with('/') {
                return Err("name no host in a file URL: write three slashes, as in \
                            file:///srv/ckpt");
            }
            check_path(path)?;
            return Ok(Self::File { path });
        }
        let Some(rest) = url.strip_prefix("hdfs://") else {
            return Err("write file:// or hdfs:// and an absolute folder without '..', such as \
                        file:///srv/ckpt or hdfs://nameservice/ckpt");
        };
        let Some(at) = rest.find('/') else {
            return Err("give an absolute folder after the nameservice, as in \
                        hdfs://nameservice/ckpt");
        };
        let (authority, path) = rest.split_at(at);
        if !is_authority(authority) {
            return Err("name a nameservice, or a host and its port, as in \
                        hdfs://nameservice/ckpt or hdfs://host:8020/ckpt");
        }
        check_path(path)?;
        let mut names = path.trim_end_matches('/').split('/').skip(1);
        if names.any(|name| name.is_empty() || name == "." || name.contains(':')) {
            return Err("use plain names in a path of HDFS: none empty, none '.', none with ':'");
        }
        Ok(Self::Hdfs { authority, path })
    }
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if path.contains('\0') || path.split('/').any(|part| part == "..") {
        return Err("write the folder without '..' and without a NUL byte");
    }
    Ok(())
}

/// A name, or a name and a port. HDFS knows no user and no password in a URL.
fn is_authority(text: &str) -> bool {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
    !host.is_empty() && host.chars().all(plain) && port.is_none_or(is_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_or_the_remedy_is_told() {
        let hdfs = |authority, path| Ok(Location::Hdfs { authority, path });
        assert_eq!(Location::parse("file:///srv/a"), Ok(Location::File { path: "/srv/a" }));
        assert_eq!(Location::parse("hdfs://ns/srv/a"), hdfs("ns", "/srv/a"));
        assert_eq!(Location::parse("hdfs://10.0.0.1:8020/"), hdfs("10.0.0.1:8020", "/"));
        for (wrong, word) in [
            ("", "file://"),
            ("s3://bucket/a", "hdfs://"),
            ("/srv/a", "file://"),
            ("file://host/a", "three slashes"),
            ("file:///a/../b", "'..'"),
            ("hdfs://ns", "absolute folder"),
            ("hdfs:///a", "nameservice"),
            ("hdfs://me@ns/a", "nameservice"),
            ("hdfs://ns:/a", "nameservice"),
            ("hdfs://ns:0/a", "nameservice"),
            ("hdfs://ns:70000/a", "nameservice"),
            ("hdfs://ns/a/../b", "'..'"),
            ("hdfs://ns/a\0", "NUL"),
            ("hdfs://ns/a//b", "plain names"),
            ("hdfs://ns/./b", "plain names"),
            ("hdfs://ns/a:b", "plain names"),
        ] {
            let remedy = Location::parse(wrong).unwrap_err();
            assert!(remedy.contains(word), "{wrong:?}: {remedy}");
        }
    }
}
