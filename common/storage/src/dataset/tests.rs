//! Data sets of random records, written and read by code of the tests' own.

use std::fs;
use std::path::Path;

use model::options::{CHUNK_BYTES, DataFormat, DataSpec};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const MAGIC: [u8; 4] = [0x0a, 0x23, 0xd7, 0xce];

/// RecordIO as MXNet writes it, by its rule rather than by our code: aligned magic words are cut
/// out.
fn recordio(records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        let mut parts: Vec<Vec<u8>> = vec![Vec::new()];
        for word in record.chunks(4) {
            if word == MAGIC {
                parts.push(Vec::new());
            } else {
                parts.last_mut().unwrap().extend(word);
            }
        }
        let last = parts.len() - 1;
        for (number, part) in parts.iter().enumerate() {
            let kind: u32 = match number {
                _ if last == 0 => 0,
                0 => 1,
                _ if number == last => 3,
                _ => 2,
            };
            bytes.extend(MAGIC);
            bytes.extend((kind << 29 | u32::try_from(part.len()).unwrap()).to_le_bytes());
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
    }
    bytes
}

fn records_of(bytes: &[u8], format: DataFormat) -> Vec<Vec<u8>> {
    match format {
        DataFormat::Fixed(size) => {
            bytes.chunks(usize::try_from(size).unwrap()).map(<[u8]>::to_vec).collect()
        }
        DataFormat::Lines => {
            let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
        }
        DataFormat::Files => panic!("their bytes do not say where records end"),
        DataFormat::RecordIo => {
            let mut records: Vec<Vec<u8>> = Vec::new();
            let mut at = 0;
            while at < bytes.len() {
                let word = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap());
                let (kind, size) = (word >> 29, usize::try_from(word & 0x1fff_ffff).unwrap());
                let part = &bytes[at + 8..at + 8 + size];
                if kind < 2 {
                    records.push(part.to_vec());
                } else {
                    let record = records.last_mut().unwrap();
                    record.extend(MAGIC);
                    record.extend(part);
                }
                at += 8 + size.next_multiple_of(4);
            }
            records
        }
    }
}

/// What lies in the blocks of an index, one list of records for each chunk; checks every count
/// and every sum on the way.
fn read_back(folder: &Path, index: &Index) -> Vec<Vec<Vec<u8>>> {
    let content = |file: usize| fs::read(folder.join(&index.files[file].path)).unwrap();
    let read = |block: &Block| {
        let first = usize::try_from(block.file).unwrap();
        let records = usize::try_from(block.records).unwrap();
        let found = if index.format == DataFormat::Files {
            (first..first + records).map(content).collect()
        } else {
            let from = usize::try_from(block.offset).unwrap();
            let to = from + usize::try_from(block.bytes).unwrap();
            let bytes = &content(first)[from..to];
            if let Some(sum) = block.crc32 {
                assert_eq!(sum, crc32fast::hash(bytes));
            }
            records_of(bytes, index.format)
        };
        assert_eq!(found.len(), records);
        found
    };
    index.chunks.iter().map(|chunk| chunk.iter().flat_map(read).collect()).collect()
}

fn write(folder: &TempDir, files: &[Vec<Vec<u8>>], format: DataFormat) {
    for (number, records) in files.iter().enumerate() {
        let path = folder.path().join(format!("part {number:03}"));
        match format {
            DataFormat::RecordIo => fs::write(path, recordio(records)).unwrap(),
            DataFormat::Lines => {
                let mut text = records.join(&b'\n');
                // Every other file lacks its last line's end.
                if number % 2 == 0 && !records.is_empty() {
                    text.push(b'\n');
                }
                fs::write(path, text).unwrap();
            }
            DataFormat::Fixed(_) => fs::write(path, records.concat()).unwrap(),
            DataFormat::Files => {
                fs::create_dir(&path).unwrap();
                for (number, record) in records.iter().enumerate() {
                    fs::write(path.join(format!("{number:06}")), record).unwrap();
                }
            }
        }
    }
}

/// Records of a format: lines hold no line ends, fixed ones have one size, and the last line of a
/// file without a line end cannot be empty.
fn any_files() -> impl Strategy<Value = (DataFormat, Vec<Vec<Vec<u8>>>)> {
    let byte = prop_oneof![Just(0x0a_u8), Just(0x23), Just(0xd7), Just(0xce), any::<u8>()];
    let word = prop_oneof![Just(MAGIC.to_vec()), prop::collection::vec(byte, 0..6)];
    let content = prop::collection::vec(word, 0..12).prop_map(|words| words.concat());
    let files = |content: BoxedStrategy<Vec<u8>>| {
        prop::collection::vec(prop::collection::vec(content, 0..40), 1..5)
    };
    let line = content.clone().prop_map(|mut line| {
        line.retain(|byte| *byte != b'\n');
        line.push(b'.');
        line
    });
    prop_oneof![
        files(content.clone().boxed()).prop_map(|files| (DataFormat::RecordIo, files)),
        files(line.boxed()).prop_map(|files| (DataFormat::Lines, files)),
        files(content.boxed()).prop_map(|files| (DataFormat::Files, files)),
        (1_u32..9).prop_flat_map(move |size| {
            let record = prop::collection::vec(any::<u8>(), usize::try_from(size).unwrap());
            files(record.boxed()).prop_map(move |files| (DataFormat::Fixed(size), files))
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_record_is_in_exactly_one_chunk((format, files) in any_files(), chunk in 40_u64..600) {
        let folder = tempfile::tempdir().unwrap();
        write(&folder, &files, format);
        let all = files.concat();
        let source = LocalSource::new(folder.path());
        let index = match scan(&source, format, chunk) {
            Ok(index) => index,
            Err(error) => {
                prop_assert!(all.is_empty(), "{error}");
                prop_assert!(error.to_string().contains("no records"));
                return Ok(());
            }
        };
        let chunks = read_back(folder.path(), &index);
        prop_assert_eq!(chunks.concat(), all.clone());
        prop_assert_eq!(index.records(), all.len() as u64);
        prop_assert_eq!(Index::decode(&index.encode(), "x").unwrap(), index.clone());
        for (blocks, records) in index.chunks.iter().zip(&chunks) {
            let bytes: u64 = blocks.iter().map(|block| block.bytes).sum();
            prop_assert!(bytes <= chunk || records.len() == 1 || bytes == 0);
        }

        let target = folder.path().join("_imported");
        let mut destination = LocalDestination::new(&target);
        let imported = import(&source, format, chunk, &mut destination).unwrap();
        prop_assert_eq!(read_back(&target, &imported).concat(), all);
        prop_assert!(imported.chunks.iter().flatten().all(|block| block.crc32.is_some()));
        prop_assert_eq!(imported.files.len(), imported.chunks.len());
        // Found by its own index, which says what a scan says.
        let again = LocalSource::new(&target);
        let spec = DataSpec { url: again.url(""), format: imported.format, chunk_bytes: chunk };
        prop_assert_eq!(&index_of(&again, &spec).unwrap(), &imported);
        prop_assert_eq!(scan(&again, imported.format, chunk).unwrap().files, imported.files);
    }

    /// Whatever is changed or cut off in a RecordIO file: an error with the file's name, or an
    /// index that covers what is there; never a panic, never more than the file holds.
    #[test]
    fn damage_is_named_or_harmless(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 1..20),
        place in any::<prop::sample::Index>(),
        value in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = recordio(&records);
        let place = place.index(bytes.len());
        if cut { bytes.truncate(place) } else { bytes[place] = value }
        fs::write(folder.path().join("a"), &bytes).unwrap();
        match scan(&LocalSource::new(folder.path()), DataFormat::RecordIo, 100) {
            Ok(index) => {
                read_back(folder.path(), &index);
                prop_assert_eq!(Index::decode(&index.encode(), "x").unwrap(), index);
            }
            Err(DataError::Damaged { url, offset, .. }) => {
                prop_assert!(url.ends_with("/a"));
                // At the record itself, or at what follows it where its length was changed.
                prop_assert!(offset < bytes.len() as u64);
            }
            Err(error) => {
                prop_assert!(place == 0 && cut, "{error}");
            }
        }
    }

    /// A document that was tampered with is refused, or covers every byte once.
    #[test]
    fn an_index_is_not_believed_blindly(place in any::<prop::sample::Index>(), digit in b'0'..=b'9') {
        let folder = tempfile::tempdir().unwrap();
        let files = [vec![vec![7; 30]; 4], vec![vec![8; 90]; 3]];
        write(&folder, &files, DataFormat::Lines);
        let index = scan(&LocalSource::new(folder.path()), DataFormat::Lines, 100).unwrap();
        let mut text = index.encode();
        let digits: Vec<usize> =
            (0..text.len()).filter(|place| text[*place].is_ascii_digit()).collect();
        text[digits[place.index(digits.len())]] = digit;
        if let Ok(found) = Index::decode(&text, "x") {
            prop_assert_eq!(found.records(), index.records());
            prop_assert_eq!(found.bytes(), index.bytes());
        }
    }
}

fn fails(folder: &Path, format: DataFormat) -> String {
    scan(&LocalSource::new(folder), format, CHUNK_BYTES).unwrap_err().to_string()
}

#[test]
fn damaged_records_are_named_by_file_and_place() {
    let folder = tempfile::tempdir().unwrap();
    let good = recordio(&vec![vec![1; 10]; 5]);
    let path = folder.path().join("train.rec");
    let write = |bytes: &[u8], words: &[&str]| {
        fs::write(&path, bytes).unwrap();
        let error = fails(folder.path(), DataFormat::RecordIo);
        for word in words.iter().chain(&["train.rec"]) {
            assert!(error.contains(word), "{error}");
        }
    };
    let mut bad = good.clone();
    bad[40] ^= 1;
    write(&bad, &["damaged at byte 40", "no RecordIO record"]);
    write(&good[..95], &["damaged at byte 80", "to byte 100, the file to 95"]);
    write(&good[..83], &["damaged at byte 80", "head of a record"]);
    let mut bad = good.clone();
    bad[27] = 0x60;
    write(&bad, &["damaged at byte 20", "kind 3", "out of order"]);
    let mut bad = good;
    bad[27] = 0x20;
    write(&bad, &["damaged at byte 20", "kind 0 stands at byte 40"]);
    write(b"a text, not RecordIO", &["damaged at byte 0"]);

    fs::write(&path, [0; 10]).unwrap();
    let error = fails(folder.path(), DataFormat::Fixed(4));
    assert!(error.contains("damaged at byte 8: the last record has fewer than 4"), "{error}");
}

#[test]
fn what_is_no_data_set_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    assert!(fails(folder.path(), DataFormat::Lines).contains("no records"));
    let missing = folder.path().join("missing");
    assert!(fails(&missing, DataFormat::Lines).contains("does not exist"));
    fs::write(folder.path().join("empty"), "").unwrap();
    assert!(fails(folder.path(), DataFormat::Lines).contains("no records"));
    assert!(fails(folder.path(), DataFormat::Fixed(0)).contains("no bytes"));
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
    let error = fails(folder.path(), DataFormat::Lines);
    assert!(error.contains("/link") && error.contains("it is a link"), "{error}");
    fs::remove_file(folder.path().join("link")).unwrap();
    nix::unistd::mkfifo(&folder.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(fails(folder.path(), DataFormat::Lines).contains("/pipe"));
}

#[test]
fn names_of_every_kind_are_taken_but_hidden_ones() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a b", "ü\n\"x", ".hidden", "_SUCCESS", "c/d/e'", "index.json"] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let source = LocalSource::new(folder.path());
    let index = scan(&source, DataFormat::Files, 5).unwrap();
    let names: Vec<&str> = index.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(names, ["a b", "c/d/e'", "index.json", "ü\n\"x"]);
    assert_eq!(Index::decode(&index.encode(), "x").unwrap(), index);
    // A file alone, by a link even: whoever names it trusts it.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path().join("a b"), &link).unwrap();
    let index = scan(&LocalSource::new(&link), DataFormat::Lines, 5).unwrap();
    assert_eq!((index.files[0].path.as_str(), index.records()), ("", 1));
    assert_eq!(Index::decode(&index.encode(), "x").unwrap(), index);
}

#[test]
fn what_im2rec_leaves_beside_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.rec"), recordio(&[vec![1], vec![2]])).unwrap();
    fs::write(folder.path().join("a.idx"), "0\t0\n").unwrap();
    fs::write(folder.path().join("a.lst"), "0\t0\tx.jpg\n").unwrap();
    let index = scan(&LocalSource::new(folder.path()), DataFormat::RecordIo, 5).unwrap();
    assert_eq!((index.records(), index.files.len()), (2, 1));
}

/// Large records are hopped over: a file with holes would else take long to read.
#[test]
fn large_records_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = fs::File::create(folder.path().join("a")).unwrap();
    let size: u32 = 400 << 20;
    let mut at = 0;
    for _ in 0..5 {
        use std::os::unix::fs::FileExt;
        let head = [MAGIC, size.to_le_bytes()].concat();
        file.write_all_at(&head, at).unwrap();
        at += 8 + u64::from(size);
    }
    file.set_len(at).unwrap();
    let index = scan(&LocalSource::new(folder.path()), DataFormat::RecordIo, CHUNK_BYTES).unwrap();
    assert_eq!((index.records(), index.chunks.len()), (5, 5));
    assert!(index.chunks.iter().all(|chunk| chunk.len() == 1 && chunk[0].crc32.is_none()));
    let file = fs::File::create(folder.path().join("a")).unwrap();
    file.set_len((512 << 20) + 1).unwrap();
    let error = fails(folder.path(), DataFormat::Lines);
    assert!(error.contains("a record of 536870913 bytes is larger than"), "{error}");
}

#[test]
fn an_import_never_mixes_with_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "1\n2\n").unwrap();
    let source = LocalSource::new(folder.path());
    let target = folder.path().join("_t");
    let mut destination = LocalDestination::new(&target);
    import(&source, DataFormat::Lines, 2, &mut destination).unwrap();
    let error = import(&source, DataFormat::Lines, 2, &mut destination).unwrap_err();
    assert!(error.to_string().contains("exists already"), "{error}");
    // A set that is damaged on the way leaves no index.
    let target = folder.path().join("_u");
    fs::write(folder.path().join("b"), "xyz").unwrap();
    import(&source, DataFormat::Fixed(2), 2, &mut LocalDestination::new(&target)).unwrap_err();
    assert!(!target.join(INDEX).exists());
    // Asked for as something else than it is.
    let spec =
        DataSpec { url: "file:///x".to_owned(), format: DataFormat::RecordIo, chunk_bytes: 9 };
    let error = index_of(&LocalSource::new(folder.path().join("_t")), &spec).unwrap_err();
    assert!(error.to_string().contains("imported as lines"), "{error}");
}

/// A source whose files lose their ends while they are read.
#[derive(Debug)]
struct Shrinking(LocalSource);

impl Source for Shrinking {
    fn url(&self, path: &str) -> String {
        self.0.url(path)
    }

    fn files(&self) -> Result<Vec<Found>, DataError> {
        let mut files = self.0.files()?;
        files.iter_mut().for_each(|file| file.bytes += 4);
        Ok(files)
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, DataError> {
        self.0.read_at(path, offset, buffer)
    }

    fn own_index(&self) -> Result<Option<Vec<u8>>, DataError> {
        Ok(None)
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), recordio(&[vec![1; 8], vec![2; 8]])).unwrap();
    let source = Shrinking(LocalSource::new(folder.path()));
    for format in [DataFormat::Lines, DataFormat::Fixed(4)] {
        let error = scan(&source, format, CHUNK_BYTES).unwrap_err().to_string();
        assert!(error.contains("/a has changed: it ends at byte 32"), "{error}");
    }
}
