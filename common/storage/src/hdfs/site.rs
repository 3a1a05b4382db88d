//! What the site's own Hadoop configuration says, as far as this crate must know it before it
//! sets something over it. The client reads the same files by itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files that Hadoop's clients read; later ones win.
const FILES: [&str; 2] = ["core-site.xml", "hdfs-site.xml"];

/// Names and values are found by their tags alone; nothing here depends on the rest of XML.
#[derive(Clone, Debug, Default)]
pub(crate) struct Site {
    texts: Vec<String>,
}

impl Site {
    /// Reads the files of `folder`, or of where Hadoop's environment variables point.
    ///
    /// # Errors
    /// Where a folder is named and holds none of the files: the client would go on without them,
    /// and fail later for another reason.
    pub(super) fn read(folder: Option<&Path>) -> io::Result<Self> {
        let Some(folder) = folder.map(Path::to_owned).or_else(from_environment) else {
            return Ok(Self::default());
        };
        let mut texts = Vec::new();
        for file in FILES {
            match fs::read_to_string(folder.join(file)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => texts.push(other?),
            }
        }
        if texts.is_empty() {
            let folder = folder.display();
            let problem = format!("{folder} has neither {}", FILES.join(" nor "));
            return Err(io::Error::new(io::ErrorKind::NotFound, problem));
        }
        Ok(Self { texts })
    }

    /// The last value under a name.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.texts.iter().rev().find_map(|text| value(text, name))
    }
}

fn from_environment() -> Option<PathBuf> {
    let conf = std::env::var_os("HADOOP_CONF_DIR").map(PathBuf::from);
    let home = || std::env::var_os("HADOOP_HOME").map(PathBuf::from);
    conf.or_else(|| Some(home()?.join("etc/hadoop")))
}

/// `<name> NAME </name> … <value> VALUE </value>` of one property.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split("<property>").skip(1).find_map(|property| {
        let property = property.split("</property>").next()?;
        let inner = |tag: &str| -> Option<&'a str> {
            let (_, rest) = property.split_once(&format!("<{tag}>"))?;
            Some(rest.split_once(&format!("</{tag}>"))?.0.trim())
        };
        (inner("name")? == name).then(|| inner("value"))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_name_and_a_folder_without_files_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = Site::read(Some(folder.path())).unwrap_err().to_string();
        assert!(error.contains("core-site.xml"), "{error}");
        let core = "<configuration><property><name>a.b</name><value>1</value></property>
            <property>\n <name> x </name>\n <final>true</final> <value>\n y,z </value></property>
            <property><name>empty</name></property></configuration>";
        fs::write(folder.path().join("core-site.xml"), core).unwrap();
        let hdfs = "<property><name>a.b</name><value>2</value></property>";
        fs::write(folder.path().join("hdfs-site.xml"), hdfs).unwrap();
        let site = Site::read(Some(folder.path())).unwrap();
        for (name, found) in [("a.b", Some("2")), ("x", Some("y,z")), ("a", None), ("empty", None)]
        {
            assert_eq!(site.value(name), found, "{name}");
        }
    }
}
