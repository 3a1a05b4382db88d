//! The first two frames of a connection. Their encoding is fixed for ever and is not bincode:
//! any version must be able to read any other's, if only to refuse it in words.
//!
//! ```text
//! hello   "OPTIMUS\0"  oldest u16  newest u16  software u8-length text            [ignored …]
//! answer  "OPTIMUS\0"  kind u8  low u16  high u16  software u8-length text
//!                      words u16-length text                                      [ignored …]
//! ```
//! Numbers are little-endian. Kind 0 welcomes: `low` = `high` = the version to speak, words = the
//! cluster's name. Others refuse: `low` to `high` is what the refuser speaks, words = why. Bytes
//! after the known fields are for later versions, and ignored.

use std::ops::RangeInclusive;

const MAGIC: &[u8; 8] = b"OPTIMUS\0";

/// Longest of these frames, in bytes.
pub const HELLO_BYTES_MAX: usize = 4096;

const WORDS_BYTES_MAX: usize = 2048;

/// The connecting side's first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub oldest: u16,
    pub newest: u16,
    pub software: String,
}

/// The master's answer where a common version exists and the peer may come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub protocol: u16,
    pub software: String,
    pub cluster: String,
}

/// What a refusal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedKind {
    Version,
    Role,
    /// A limit is reached; later it may work.
    Busy,
    /// The certificate is revoked.
    Certificate,
    /// Also one that this version does not know.
    Other,
}

/// The master's answer otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub kind: RefusedKind,
    /// Versions that the refuser speaks.
    pub oldest: u16,
    pub newest: u16,
    pub software: String,
    pub reason: String,
}

pub(crate) type Answer = Result<Welcome, Refused>;

fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn push_short(out: &mut Vec<u8>, text: &str) {
    let text = cut(text, usize::from(u8::MAX));
    out.push(u8::try_from(text.len()).expect("cut to 255 bytes"));
    out.extend_from_slice(text.as_bytes());
}

fn push_long(out: &mut Vec<u8>, text: &str) {
    let text = cut(text, WORDS_BYTES_MAX);
    let length = u16::try_from(text.len()).expect("cut to 2,048 bytes");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (head, tail) = self.0.split_at_checked(count).ok_or_else(too_short)?;
        self.0 = tail;
        Ok(head)
    }

    fn magic(&mut self) -> Result<(), String> {
        if self.bytes(MAGIC.len()).is_ok_and(|bytes| bytes == MAGIC) {
            return Ok(());
        }
        Err("the first frame is not a greeting of Optimus".to_owned())
    }

    fn u8(&mut self) -> Result<u8, String> {
        Ok(self.bytes(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, String> {
        self.bytes(2)?.try_into().map(u16::from_le_bytes).map_err(|_| too_short())
    }

    fn text(&mut self, length: usize) -> Result<String, String> {
        self.bytes(length).map(|bytes| match bytes {
            [] => String::new(),
            bytes => crate::error::words(bytes),
        })
    }

    fn short(&mut self) -> Result<String, String> {
        let length = self.u8()?;
        self.text(usize::from(length))
    }

    fn long(&mut self) -> Result<String, String> {
        let length = self.u16()?;
        self.text(usize::from(length))
    }
}

fn too_short() -> String {
    "the greeting is too short".to_owned()
}

/// Prefixes a body with its length, as every frame has it.
fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("a greeting has at most 4,096 bytes");
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend_from_slice(body);
    frame
}

impl Hello {
    /// The whole frame.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut body = MAGIC.to_vec();
        body.extend_from_slice(&self.oldest.to_le_bytes());
        body.extend_from_slice(&self.newest.to_le_bytes());
        push_short(&mut body, &self.software);
        framed(&body)
    }

    pub(crate) fn read(body: &[u8]) -> Result<Self, String> {
        let mut fields = Fields(body);
        fields.magic()?;
        Ok(Self { oldest: fields.u16()?, newest: fields.u16()?, software: fields.short()? })
    }
}

pub(crate) fn answer_frame(answer: &Answer) -> Vec<u8> {
    let mut body = MAGIC.to_vec();
    let (kind, low, high, software, words) = match answer {
        Ok(Welcome { protocol, software, cluster }) => (0, *protocol, *protocol, software, cluster),
        Err(Refused { kind, oldest, newest, software, reason }) => {
            let kind: u8 = match kind {
                RefusedKind::Version => 1,
                RefusedKind::Role => 2,
                RefusedKind::Busy => 3,
                RefusedKind::Other => 4,
                RefusedKind::Certificate => 5,
            };
            (kind, *oldest, *newest, software, reason)
        }
    };
    body.push(kind);
    body.extend_from_slice(&low.to_le_bytes());
    body.extend_from_slice(&high.to_le_bytes());
    push_short(&mut body, software);
    push_long(&mut body, words);
    framed(&body)
}

pub(crate) fn read_answer(body: &[u8]) -> Result<Answer, String> {
    let mut fields = Fields(body);
    fields.magic()?;
    let kind = fields.u8()?;
    let (low, high) = (fields.u16()?, fields.u16()?);
    let (software, words) = (fields.short()?, fields.long()?);
    let kind = match kind {
        0 => return Ok(Ok(Welcome { protocol: low, software, cluster: words })),
        1 => RefusedKind::Version,
        2 => RefusedKind::Role,
        3 => RefusedKind::Busy,
        5 => RefusedKind::Certificate,
        _ => RefusedKind::Other,
    };
    Ok(Err(Refused { kind, oldest: low, newest: high, software, reason: words }))
}

/// The newest version that both speak.
pub(crate) fn common_version(ours: &RangeInclusive<u16>, hello: &Hello) -> Option<u16> {
    let newest = (*ours.end()).min(hello.newest);
    (newest >= *ours.start() && newest >= hello.oldest).then_some(newest)
}

/// Why there is no common version, said by the master to `peer`.
pub(crate) fn version_refusal(
    ours: &RangeInclusive<u16>,
    hello: &Hello,
    peer: crate::Role,
) -> String {
    let (oldest, newest) = (ours.start(), ours.end());
    let peer = match peer {
        crate::Role::Operator | crate::Role::Admin | crate::Role::User => "command",
        crate::Role::Agent | crate::Role::Master => peer.name(),
    };
    let remedy = if hello.newest < *oldest {
        format!("upgrade the {peer} to a release that speaks {oldest} to {newest}")
    } else {
        format!("upgrade the master to a release that speaks {}", hello.oldest)
    };
    format!(
        "this master speaks protocol {oldest} to {newest}, you speak {} to {}: {remedy}",
        hello.oldest, hello.newest
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(oldest: u16, newest: u16) -> Hello {
        Hello { oldest, newest, software: "optimus-agent 0.1.0".to_owned() }
    }

    #[test]
    fn the_newest_common_version_is_spoken() {
        for (ours, theirs, common) in [
            (1..=1, (1, 1), Some(1)),
            (1..=4, (2, 3), Some(3)),
            (2..=3, (1, 9), Some(3)),
            (1..=1, (7, 9), None),
            (3..=4, (1, 2), None),
            (1..=4, (3, 2), None),
            (0..=u16::MAX, (u16::MAX, u16::MAX), Some(u16::MAX)),
        ] {
            let found = common_version(&ours, &hello(theirs.0, theirs.1));
            assert_eq!(found, common, "{ours:?} and {theirs:?}");
        }
    }

    #[test]
    fn a_refusal_says_who_must_be_upgraded() {
        let words = version_refusal(&(1..=1), &hello(7, 9), crate::Role::Agent);
        let start = "this master speaks protocol 1 to 1, you speak 7 to 9: upgrade the master";
        assert!(words.starts_with(start), "{words}");
        let words = version_refusal(&(3..=4), &hello(1, 2), crate::Role::Operator);
        assert!(words.contains("upgrade the command"), "{words}");
    }

    /// The bytes that every version must read, for ever.
    const HELLO: &[u8] = b"\x1f\0\0\0OPTIMUS\0\x01\0\x03\0\x12optimus-agent 0.1.";
    const WELCOME: &[u8] = b"\x16\0\0\0OPTIMUS\0\0\x01\0\x01\0\x02m1\x04\0demo";
    const REFUSED: &[u8] = b"\x15\0\0\0OPTIMUS\0\x01\x01\0\x02\0\x02m1\x03\0old";

    #[test]
    fn the_encoding_is_fixed_for_ever() {
        let hello = Hello { oldest: 1, newest: 3, software: "optimus-agent 0.1.".to_owned() };
        assert_eq!(hello.frame(), HELLO);
        assert_eq!(Hello::read(&HELLO[4..]), Ok(hello));
        let welcome =
            Ok(Welcome { protocol: 1, software: "m1".to_owned(), cluster: "demo".to_owned() });
        assert_eq!(answer_frame(&welcome), WELCOME);
        assert_eq!(read_answer(&WELCOME[4..]), Ok(welcome));
        let refused = Err(Refused {
            kind: RefusedKind::Version,
            oldest: 1,
            newest: 2,
            software: "m1".to_owned(),
            reason: "old".to_owned(),
        });
        assert_eq!(answer_frame(&refused), REFUSED);
        assert_eq!(read_answer(&REFUSED[4..]), Ok(refused));
    }

    #[test]
    fn later_fields_are_ignored_and_missing_ones_refused() {
        let mut longer = HELLO[4..].to_vec();
        longer.extend_from_slice(b"fields of version 40");
        assert_eq!(Hello::read(&longer), Hello::read(&HELLO[4..]));
        for length in 0..HELLO.len() - 4 {
            assert!(Hello::read(&HELLO[4..4 + length]).is_err(), "{length} bytes were taken");
        }
        for length in 0..WELCOME.len() - 4 {
            assert!(read_answer(&WELCOME[4..4 + length]).is_err(), "{length} bytes were taken");
        }
        assert!(Hello::read(b"GET / HTTP/1.1\r\n\r\n").is_err());
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = Hello { oldest: 1, newest: 1, software: "é".repeat(1000) };
        let frame = long.frame();
        assert!(frame.len() <= HELLO_BYTES_MAX);
        assert_eq!(Hello::read(&frame[4..]).unwrap().software, "é".repeat(127));
    }
}
