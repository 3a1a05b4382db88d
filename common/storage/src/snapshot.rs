//! The format in which a master's store leaves the store: one file, checked to the last byte.
//!
//! ```text
//! magic    8 bytes  "OPTSNAP\n"
//! version  u32      1
//! header   u32 length, JSON {"cluster", "software", "created_unix_ms"}
//! records  u32 key length, u32 value length, key, value, u32 CRC-32 of these four
//! end      u32 0xffffffff, u64 number of records, u32 CRC-32 of all bytes before it
//! ```
//! Numbers are little-endian. A record is a key and an opaque value of the store; the first byte
//! of a key names its table. Nothing may follow the end.

use std::collections::BTreeMap;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

pub const MAGIC: [u8; 8] = *b"OPTSNAP\n";
pub const VERSION: u32 = 1;

const END: u32 = u32::MAX;
const HEADER_BYTES_MAX: u32 = 64 * 1024;
/// Longest key: table, and a name.
pub const KEY_BYTES_MAX: u32 = 4 * 1024;
/// Longest value; the largest record, a finished job's story, is far below.
pub const VALUE_BYTES_MAX: u32 = 64 << 20;

/// Where a snapshot comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub cluster: String,
    /// Version of the master that wrote it.
    pub software: String,
    pub created_unix_ms: u64,
}

/// What a whole snapshot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub header: Header,
    pub records: u64,
    pub bytes: u64,
    /// Records by the first byte of their keys.
    pub tables: BTreeMap<u8, u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("cannot read the snapshot at byte {at}")]
    Io { at: u64, source: io::Error },
    #[error("the snapshot is not whole at byte {at}: {problem}")]
    Damaged { at: u64, problem: &'static str },
    #[error("the snapshot has format {found}, this build reads {VERSION}: use a newer one")]
    Version { found: u32 },
    /// The caller's own refusal of a record.
    #[error("cannot take record {number}: {problem}")]
    Record { number: u64, problem: String },
    #[error("record {number} is too long to be kept: {bytes} bytes")]
    TooLong { number: u64, bytes: usize },
}

/// Builds a snapshot in memory.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    records: u64,
}

impl Writer {
    #[must_use]
    pub fn new(header: &Header) -> Self {
        let json = serde_json::to_vec(header).expect("plain data is valid JSON");
        let length = u32::try_from(json.len()).expect("a header is three short fields");
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(json);
        Self { bytes, records: 0 }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`SnapshotError::TooLong`], with nothing added.
    pub fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), SnapshotError> {
        let fit = |part: &[u8], max: u32| {
            let bytes = part.len();
            let length = u32::try_from(bytes).ok().filter(|length| *length <= max);
            length.ok_or(SnapshotError::TooLong { number: self.records, bytes })
        };
        let lengths = [fit(key, KEY_BYTES_MAX)?, fit(value, VALUE_BYTES_MAX)?];
        let start = self.bytes.len();
        lengths.iter().for_each(|length| self.bytes.extend(length.to_le_bytes()));
        self.bytes.extend(key);
        self.bytes.extend(value);
        let crc32 = crc32fast::hash(&self.bytes[start..]);
        self.bytes.extend(crc32.to_le_bytes());
        self.records += 1;
        Ok(())
    }

    /// The file's content.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.extend(END.to_le_bytes());
        self.bytes.extend(self.records.to_le_bytes());
        let crc32 = crc32fast::hash(&self.bytes);
        self.bytes.extend(crc32.to_le_bytes());
        self.bytes
    }
}

/// Reads and checks the whole of a snapshot without keeping it.
///
/// # Errors
/// Where any byte is missing, changed or too many.
pub fn verify(source: impl Read) -> Result<Summary, SnapshotError> {
    read(source, |_, _| Ok(()))
}

/// Reads a snapshot and gives each record to `each`, which may refuse it in words. Records are
/// given before the end is checked: use what was collected only if this returns `Ok`.
///
/// # Errors
/// Where any byte is missing, changed or too many, or `each` refuses.
pub fn read(
    source: impl Read,
    mut each: impl FnMut(&[u8], &[u8]) -> Result<(), String>,
) -> Result<Summary, SnapshotError> {
    let mut source = Source { inner: io::BufReader::new(source), at: 0, hasher: <_>::default() };
    let header = read_header(&mut source)?;
    let mut tables = BTreeMap::new();
    let mut records = 0;
    loop {
        let before_record = source.at;
        let key_length = source.number()?;
        if key_length == END {
            break;
        }
        let value_length = source.number()?;
        if KEY_BYTES_MAX < key_length || VALUE_BYTES_MAX < value_length || key_length == 0 {
            return Err(SnapshotError::Damaged { at: before_record, problem: "bad length" });
        }
        let key = source.bytes(key_length)?;
        let value = source.bytes(value_length)?;
        let mut sum = crc32fast::Hasher::new();
        sum.update(&key_length.to_le_bytes());
        sum.update(&value_length.to_le_bytes());
        sum.update(&key);
        sum.update(&value);
        if source.number()? != sum.finalize() {
            let problem = "a record's checksum does not match";
            return Err(SnapshotError::Damaged { at: before_record, problem });
        }
        each(&key, &value).map_err(|problem| SnapshotError::Record { number: records, problem })?;
        *tables.entry(key[0]).or_default() += 1;
        records += 1;
    }
    read_end(&mut source, records)?;
    Ok(Summary { header, records, bytes: source.at, tables })
}

fn read_header(source: &mut Source<impl Read>) -> Result<Header, SnapshotError> {
    if source.bytes(8)? != MAGIC {
        return Err(SnapshotError::Damaged { at: 0, problem: "it does not begin as a snapshot" });
    }
    let found = source.number()?;
    if found != VERSION {
        return Err(SnapshotError::Version { found });
    }
    let at = source.at;
    let damaged = |problem| SnapshotError::Damaged { at, problem };
    let length = source.number()?;
    if HEADER_BYTES_MAX < length {
        return Err(damaged("bad length of the header"));
    }
    let json = source.bytes(length)?;
    serde_json::from_slice(&json).map_err(|_| damaged("the header is not readable"))
}

fn read_end(source: &mut Source<impl Read>, records: u64) -> Result<(), SnapshotError> {
    let at = source.at;
    let damaged = |problem| Err(SnapshotError::Damaged { at, problem });
    let low = u64::from(source.number()?);
    let high = u64::from(source.number()?);
    if low | (high << 32) != records {
        return damaged("the number of records does not match");
    }
    let expected = source.hasher.clone().finalize();
    if source.number()? != expected {
        return damaged("the checksum of the whole does not match");
    }
    if source.more()? {
        return damaged("something follows its end");
    }
    Ok(())
}

/// Counts and sums what is read.
struct Source<R> {
    inner: R,
    at: u64,
    hasher: crc32fast::Hasher,
}

impl<R: Read> Source<R> {
    fn bytes(&mut self, length: u32) -> Result<Vec<u8>, SnapshotError> {
        let at = self.at;
        let mut bytes = Vec::new();
        // Grows with what is really there: a length alone must not reserve memory.
        (&mut self.inner)
            .take(u64::from(length))
            .read_to_end(&mut bytes)
            .map_err(|source| SnapshotError::Io { at, source })?;
        if (bytes.len() as u64) < u64::from(length) {
            return Err(SnapshotError::Damaged { at, problem: "it ends too early" });
        }
        self.hasher.update(&bytes);
        self.at += u64::from(length);
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u32, SnapshotError> {
        let bytes = self.bytes(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn more(&mut self) -> Result<bool, SnapshotError> {
        let at = self.at;
        let mut one = [0];
        let count = self.inner.read(&mut one);
        count.map(|count| count > 0).map_err(|source| SnapshotError::Io { at, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            cluster: "lab".to_owned(),
            software: "0.1.0".to_owned(),
            created_unix_ms: 1_700_000_000_000,
        }
    }

    fn sample() -> Vec<u8> {
        let mut writer = Writer::new(&header());
        writer.record(b"\x01job", b"a job").unwrap();
        writer.record(b"\x01job2", b"").unwrap();
        writer.record(b"\x02node", &[9; 300]).unwrap();
        writer.finish()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut records = Vec::new();
        let bytes = sample();
        let summary = read(bytes.as_slice(), |key, value| {
            records.push((key.to_vec(), value.to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(summary.header.cluster, "lab");
        assert_eq!((summary.records, summary.bytes), (3, bytes.len() as u64));
        assert_eq!(summary.tables, BTreeMap::from([(1, 2), (2, 1)]));
        assert_eq!(records[2], (b"\x02node".to_vec(), vec![9; 300]));
        assert_eq!(verify(Writer::new(&Header::default()).finish().as_slice()).unwrap().records, 0);
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_refused() {
        let good = sample();
        for at in 0..good.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut changed = good.clone();
                changed[at] ^= flip;
                assert!(verify(changed.as_slice()).is_err(), "byte {at} ^ {flip:#x} passed unseen");
            }
            assert!(verify(&good[..at]).is_err(), "a cut at {at} passed unseen");
        }
        let mut longer = good;
        longer.push(0);
        assert!(verify(longer.as_slice()).is_err(), "a byte after the end passed unseen");
    }

    #[test]
    fn a_length_alone_reserves_no_memory_and_a_newer_format_is_named() {
        let mut huge = Writer::new(&header()).bytes;
        huge.extend(KEY_BYTES_MAX.to_le_bytes());
        huge.extend(VALUE_BYTES_MAX.to_le_bytes());
        let error = verify(huge.as_slice()).unwrap_err().to_string();
        assert!(error.contains("ends too early"), "{error}");
        let mut newer = sample();
        newer[8] = 2;
        assert!(matches!(verify(newer.as_slice()), Err(SnapshotError::Version { found: 2 })));
    }

    #[test]
    fn a_refused_record_is_named() {
        let error = read(sample().as_slice(), |key, _| {
            if key == b"\x02node" { Err("unknown table".to_owned()) } else { Ok(()) }
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "cannot take record 2: unknown table");
    }
}
