//! Records as bytes on disk: one byte for the encoding, then bincode; or another byte, and the
//! whole of that sealed with the store key.

use control::record::{Record, Write};

use crate::seal::Seal;
use crate::store::{Content, Op};

/// Grows when bytes of an older master would no longer read. What changes within a record is a
/// new variant of [`Record`] instead.
const ENCODING: u8 = 1;
/// A value of [`ENCODING`], sealed: see `seal.rs`.
const SEALED: u8 = 2;

/// Longest record that is read; without a limit a damaged length would ask for terabytes.
const RECORD_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CodecError {
    #[error("cannot encode the record under key {key:02x?}: {words}")]
    Encode { key: Vec<u8>, words: String },
    #[error("the record under key {key:02x?} does not read: {words}")]
    Decode { key: Vec<u8>, words: String },
    #[error(
        "it is sealed: give its key, as the credential store-key (LoadCredential=store-key:FILE) \
         or as store_key in master.toml"
    )]
    Sealed,
    #[error("it was sealed with another store key: give that one")]
    OtherKey,
    #[error(
        "the record under key {key:02x?} does not open with the store key: it was altered, or \
         sealed with another"
    )]
    Altered { key: Vec<u8> },
}

/// The changes of one `Persist` as the store takes them.
pub(crate) fn encode(writes: &[Write], seal: Option<&Seal>) -> Result<Vec<Op>, CodecError> {
    let sealed = |write| {
        let op = encode_one(write)?;
        match (seal, op.value) {
            (Some(seal), Some(plain)) => sealed_op(op.key, &plain, seal),
            (_, value) => Ok(Op { key: op.key, value }),
        }
    };
    writes.iter().map(sealed).collect()
}

/// A plain value as it is put into a store that has a key.
pub(crate) fn sealed_op(key: Vec<u8>, plain: &[u8], seal: &Seal) -> Result<Op, CodecError> {
    match seal.seal(&key, plain) {
        Ok(body) => {
            let mut value = Vec::with_capacity(body.len() + 1);
            value.push(SEALED);
            value.extend(body);
            Ok(Op { key, value: Some(value) })
        }
        Err(words) => Err(CodecError::Encode { key, words: words.to_owned() }),
    }
}

pub(crate) fn is_sealed(value: &[u8]) -> bool {
    value.first() == Some(&SEALED)
}

/// Every record of a store.
///
/// # Errors
/// [`CodecError::Sealed`] and [`CodecError::OtherKey`] are about the key alone, and the store is
/// whole as far as can be told.
pub(crate) fn decode_all(
    content: &Content,
    seal: Option<&Seal>,
) -> Result<Vec<Record>, CodecError> {
    let decoded = content.iter().map(|(key, value)| decode(key, value, seal)).collect();
    if let (Err(CodecError::Altered { .. }), Some(seal)) = (&decoded, seal) {
        let mut sealed = content.iter().filter(|(_, value)| is_sealed(value));
        if !sealed.any(|(key, value)| seal.open(key, &value[1..]).is_some()) {
            return Err(CodecError::OtherKey);
        }
    }
    decoded
}

fn encode_one(write: &Write) -> Result<Op, CodecError> {
    let record = match write {
        Write::Put(record) => record,
        Write::Delete(key) => return Ok(Op { key: key.bytes(), value: None }),
    };
    let key = record.key().bytes();
    let config = bincode::config::standard();
    match bincode::serde::encode_to_vec(record, config) {
        Ok(body) => {
            let mut value = Vec::with_capacity(body.len() + 1);
            value.push(ENCODING);
            value.extend(body);
            Ok(Op { key, value: Some(value) })
        }
        Err(error) => Err(CodecError::Encode { key, words: error.to_string() }),
    }
}

/// Reads a record and checks that it lies where it belongs.
pub(crate) fn decode(key: &[u8], value: &[u8], seal: Option<&Seal>) -> Result<Record, CodecError> {
    if is_sealed(value) {
        let plain = seal.ok_or(CodecError::Sealed)?.open(key, &value[1..]);
        let plain = plain.ok_or_else(|| CodecError::Altered { key: key.to_vec() })?;
        return decode_plain(key, &plain);
    }
    decode_plain(key, value)
}

fn decode_plain(key: &[u8], value: &[u8]) -> Result<Record, CodecError> {
    let refuse = |words: String| CodecError::Decode { key: key.to_vec(), words };
    let (encoding, body) = value.split_first().ok_or_else(|| refuse("it is empty".to_owned()))?;
    if *encoding != ENCODING {
        return Err(refuse(format!(
            "it has encoding {encoding}, this build reads {ENCODING}: start the newer release \
             that wrote it"
        )));
    }
    let config = bincode::config::standard().with_limit::<RECORD_BYTES_MAX>();
    let (record, used): (Record, usize) = bincode::serde::decode_from_slice(body, config)
        .map_err(|error| refuse(error.to_string()))?;
    if used != body.len() {
        return Err(refuse(format!("{} bytes are left over", body.len() - used)));
    }
    if record.key().bytes() != key {
        return Err(refuse("it belongs under another key".to_owned()));
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use control::record::Meta;

    use super::*;

    fn meta() -> Record {
        Record::MetaV1(Meta { starts: 3, jobs: 12, rounds: 700, events: 70_000 })
    }

    /// Bytes as the first version wrote them: they must read for ever.
    const META_V1: [u8; 12] = [1, 0, 3, 12, 251, 188, 2, 252, 112, 17, 1, 0];

    #[test]
    fn records_of_the_first_version_read() {
        let ops = encode(&[Write::Put(meta())], None).unwrap();
        assert_eq!(ops, [Op { key: vec![0], value: Some(META_V1.to_vec()) }]);
        assert_eq!(decode(&[0], &META_V1, None).unwrap(), meta());
    }

    /// Bytes as the first version with learning rates wrote them.
    const RATES_V1: [u8; 21] = [1, 7, 5, 1, 0, 0, 0, 0, 0, 0, 89, 64, 0, 0, 0, 0, 0, 0, 224, 63, 1];

    #[test]
    fn learning_rates_are_a_record_of_their_own() {
        let mark = control::record::RateMark { work: 100.0, rate: 0.5, stepped: true };
        let record = Record::RatesV1(control::record::RateRecord {
            job: model::JobId(5),
            marks: vec![mark],
        });
        let key = record.key().bytes();
        let ops = encode(&[Write::Put(record.clone())], None).unwrap();
        assert_eq!(ops, [Op { key: key.clone(), value: Some(RATES_V1.to_vec()) }]);
        assert_eq!(decode(&key, &RATES_V1, None).unwrap(), record);
    }

    /// Bytes as the first version with closed nodes wrote them.
    const NODE_OPS_V1: [u8; 23] = [
        1, 13, 2, b'n', b'1', 2, 3, b'a', b'd', b'a', 251, 44, 1, 4, b'd', b'i', b's', b'k', 1,
        251, 45, 1, 5,
    ];

    #[test]
    fn closed_nodes_are_records_of_their_own() {
        let record = Record::NodeOpsV1(control::record::NodeOpsRecord {
            node: "n1".parse().unwrap(),
            state: model::reason::Schedulability::Draining,
            by: "ada".to_owned(),
            since: model::UnixMs(300),
            reason: "disk".to_owned(),
            deadline: Some(model::UnixMs(301)),
            tasks_before: 5,
        });
        let key = record.key().bytes();
        assert_eq!(key, [13, b'n', b'1']);
        let bytes = NODE_OPS_V1.to_vec();
        let ops = encode(&[Write::Put(record.clone())], None).unwrap();
        assert_eq!(ops, [Op { key: key.clone(), value: Some(bytes.clone()) }]);
        assert_eq!(decode(&key, &bytes, None).unwrap(), record);
    }

    /// What of a GPU's record comes after its number, as the first version with GPUs wrote it.
    const GPU_V1: [u8; 61] = [
        2, 110, 49, 5, 71, 80, 85, 45, 49, 3, 1, 253, 0, 104, 229, 207, 139, 1, 0, 0, 6, 88, 105,
        100, 32, 55, 57, 0, 1, 2, 79, 1, 253, 0, 104, 229, 207, 139, 1, 0, 0, 6, 88, 105, 100, 32,
        55, 57, 4, 2, 1, 253, 0, 104, 229, 207, 139, 1, 0, 0, 0,
    ];

    #[test]
    fn the_health_of_a_gpu_is_a_record_of_its_own() {
        use control::record::{GpuCause, GpuRecord};
        let at = model::UnixMs(1_700_000_000_000);
        let record = Record::GpuV1(Box::new(GpuRecord {
            node: "n1".parse().unwrap(),
            uuid: "GPU-1".to_owned(),
            health: model::nodes::GpuHealth::Bad,
            since: Some(at),
            reason: "Xid 79".to_owned(),
            by: None,
            cause: Some(GpuCause::Xid(79)),
            history: vec![(at, "Xid 79".to_owned())],
            xid_seen: (model::Incarnation(4), 2),
            suspicions: vec![at],
            kept: None,
        }));
        let key = record.key().bytes();
        assert_eq!(key, b"\x0en1 GPU-1");
        let ops = encode(&[Write::Put(record.clone())], None).unwrap();
        let value = ops[0].value.clone().unwrap();
        assert_eq!(value[2..], GPU_V1);
        assert_eq!(decode(&key, &value, None).unwrap(), record);
    }

    #[test]
    fn what_does_not_belong_is_refused_in_words() {
        let mut longer = META_V1.to_vec();
        longer.push(0);
        for (key, value, word) in [
            (vec![0], vec![], "empty"),
            (vec![0], vec![3, 0], "newer release"),
            (vec![0], vec![2, 0], "store_key"),
            (vec![0], vec![1, 200], "does not read"),
            (vec![0], META_V1[..6].to_vec(), "does not read"),
            (vec![0], longer, "left over"),
            (vec![1], META_V1.to_vec(), "another key"),
        ] {
            let error = decode(&key, &value, None).unwrap_err().to_string();
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn sealed_records_read_with_their_key_and_say_what_is_missing_otherwise() {
        let (own, other) = (Seal::new(&[1; 32]), Seal::new(&[2; 32]));
        let ops = encode(&[Write::Put(meta())], Some(&own)).unwrap();
        let mut content: Content = ops.into_iter().map(|op| (op.key, op.value.unwrap())).collect();
        assert!(is_sealed(&content[[0].as_slice()]));
        assert_eq!(decode_all(&content, Some(&own)).unwrap(), [meta()]);
        assert!(matches!(decode_all(&content, None), Err(CodecError::Sealed)));
        assert!(matches!(decode_all(&content, Some(&other)), Err(CodecError::OtherKey)));
        // One that was moved to another's place, beside one that opens.
        let value = content[[0].as_slice()].clone();
        content.insert(vec![1], value);
        let altered = decode_all(&content, Some(&own));
        assert!(matches!(altered, Err(CodecError::Altered { key }) if key == [1]));
    }
}

#[cfg(test)]
#[path = "golden_tests.rs"]
mod golden_tests;
