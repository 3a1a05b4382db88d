use std::fs;

use super::*;
use crate::FileStorage;

const JOB: JobId = JobId(12);

struct World {
    folder: tempfile::TempDir,
    base: String,
    storage: Box<dyn Storage>,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let base = format!("file://{}", folder.path().display());
        let storage = crate::open(&base).unwrap();
        Self { folder, base, storage }
    }

    fn path(&self, relative: &str) -> std::path::PathBuf {
        self.folder.path().join(relative)
    }

    /// Writes the parts as a job does and tells what its report would say.
    fn save(&self, generation: u64, checkpoint: u64) -> Manifest {
        let (generation, checkpoint) = (Generation(generation), CheckpointId(checkpoint));
        let directory = directory(JOB, generation, checkpoint);
        self.storage.make_dir(&directory).unwrap();
        let part = |file: &str, content: &[u8]| {
            fs::write(self.path(&directory).join(file), content).unwrap();
            let bytes = content.len() as u64;
            Part { file: file.to_owned(), bytes, crc32: crc32fast::hash(content) }
        };
        let step = checkpoint.0 * 100;
        let parts = vec![
            part("parameters.npz", format!("weights at {step}").as_bytes()),
            part("server-0.npz", &[7; 1000]),
        ];
        Manifest {
            job: JOB,
            generation,
            checkpoint,
            step,
            epoch: 3,
            epoch_position: 640,
            directory,
            parts,
        }
    }

    fn publish(&self, manifest: &Manifest) -> Result<String, CheckpointError> {
        let url = format!("{}/{}", self.base, manifest.directory);
        publish_manifest(self.storage.as_ref(), &self.base, &url, manifest.clone())
    }

    fn newest(&self) -> (Option<u64>, Vec<Skipped>) {
        let (found, skipped) = newest_valid(self.storage.as_ref(), JOB).unwrap();
        (found.map(|manifest| manifest.checkpoint.0), skipped)
    }
}

#[test]
fn a_published_checkpoint_is_found_again() {
    let world = World::new();
    assert_eq!(world.newest(), (None, vec![]));
    let manifest = world.save(3, 7);
    let url = world.publish(&manifest).unwrap();
    assert_eq!(url, format!("{}/j12/manifest-g00000003-c00000007.json", world.base));
    assert_eq!(load_manifest(world.storage.as_ref(), &manifest.path()).unwrap(), manifest);
    assert_eq!(world.newest(), (Some(7), vec![]));
    assert_eq!(world.publish(&manifest).unwrap(), url, "publishing again changes nothing");
    let other = Manifest { step: 701, ..manifest };
    let error = world.publish(&other).unwrap_err().to_string();
    assert!(error.contains("says otherwise"), "{error}");
}

#[test]
fn the_newest_by_number_wins_not_by_name_or_time() {
    let world = World::new();
    for (generation, checkpoint) in [(2, 11), (10, 12), (1, 2)] {
        world.publish(&world.save(generation, checkpoint)).unwrap();
    }
    assert_eq!(world.newest(), (Some(12), vec![]));
}

#[test]
fn what_is_half_written_or_foreign_is_skipped_with_a_reason() {
    let world = World::new();
    world.publish(&world.save(1, 1)).unwrap();
    for checkpoint in 2..=5 {
        world.publish(&world.save(1, checkpoint)).unwrap();
    }
    world.save(1, 6);
    fs::remove_file(world.path("j12/g00000001-c00000005/server-0.npz")).unwrap();
    fs::write(world.path("j12/g00000001-c00000004/server-0.npz"), [8; 1000]).unwrap();
    fs::write(world.path("j12/g00000001-c00000003/server-0.npz"), [7; 999]).unwrap();
    let manifest = world.path("j12/manifest-g00000001-c00000002.json");
    let json = fs::read(&manifest).unwrap();
    fs::write(&manifest, &json[..json.len() / 2]).unwrap();
    fs::write(world.path("j12/notes.txt"), "mine").unwrap();
    fs::write(world.path("j12/.unpublished-manifest-g00000001-c00000009.json.1.0"), "").unwrap();
    fs::create_dir(world.path("j12/99999999")).unwrap();
    // A manifest under another checkpoint's name.
    let copy = world.path("j12/manifest-g00000001-c00000008.json");
    fs::copy(world.path("j12/manifest-g00000001-c00000001.json"), copy).unwrap();

    let (found, skipped) = world.newest();
    assert_eq!(found, Some(1));
    for (name, word) in [
        ("notes.txt", "not part of a checkpoint"),
        ("99999999", "not part of a checkpoint"),
        (".unpublished-manifest-g00000001-c00000009.json.1.0", "cut short"),
        ("g00000001-c00000006", "no manifest"),
        ("manifest-g00000001-c00000008.json", "another checkpoint"),
        ("manifest-g00000001-c00000005.json", "does not exist"),
        ("manifest-g00000001-c00000004.json", "crc32"),
        ("manifest-g00000001-c00000003.json", "999 bytes, not 1000"),
        ("manifest-g00000001-c00000002.json", "truncated"),
    ] {
        let one = skipped.iter().find(|skipped| skipped.name == name).unwrap();
        assert!(one.reason.contains(word), "{name}: {}", one.reason);
    }
    assert_eq!(skipped.len(), 9, "{skipped:#?}");
}

/// A kill at any point of a save leaves some prefix of what was written; each is tried.
#[test]
fn a_kill_at_any_byte_of_a_save_never_costs_the_last_whole_checkpoint() {
    let world = World::new();
    world.publish(&world.save(1, 1)).unwrap();
    let second = world.save(1, 2);
    world.publish(&second).unwrap();
    let mut files: Vec<_> = second
        .parts
        .iter()
        .map(|part| world.path(&format!("{}/{}", second.directory, part.file)))
        .collect();
    files.push(world.path(&second.path()));
    let whole: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    files.iter().for_each(|file| fs::remove_file(file).unwrap());
    let mut tried = 0;
    for (file, content) in files.iter().zip(&whole) {
        for length in (0..content.len()).step_by(37) {
            fs::write(file, &content[..length]).unwrap();
            assert_eq!(world.newest().0, Some(1), "{} cut at {length}", file.display());
            tried += 1;
        }
        fs::write(file, content).unwrap();
    }
    assert_eq!(world.newest().0, Some(2));
    assert!(tried > 30, "only {tried} points were tried");
}

#[test]
fn every_changed_byte_of_a_manifest_is_noticed() {
    let world = World::new();
    let manifest = world.save(1, 1);
    let json = manifest.to_json();
    for at in 0..json.len() {
        for flip in [0x01, 0x20, 0x80] {
            let mut changed = json.clone();
            changed[at] ^= flip;
            // White space between the tokens carries nothing.
            match Manifest::from_json(&changed) {
                Ok(read) => assert!(
                    json[at].is_ascii_whitespace() && read == manifest,
                    "byte {at} passed unseen"
                ),
                Err(reason) => assert!(!reason.is_empty()),
            }
        }
    }
}

#[test]
fn a_damaged_or_foreign_save_is_not_published() {
    let world = World::new();
    let good = world.save(1, 1);
    let part = |file: &str| Part { file: file.to_owned(), bytes: 1, crc32: 0 };
    let with = |parts: Vec<Part>| Manifest { parts, ..good.clone() };
    let twice = vec![good.parts[0].clone(), good.parts[0].clone()];
    for (wrong, word) in [
        (with(vec![]), "0 parts"),
        (with(twice), "twice"),
        (with(vec![part("../../etc/passwd")]), "plain file name"),
        (with(vec![part("missing")]), "does not exist"),
        (Manifest { job: JobId(13), ..good.clone() }, "is not the job's"),
    ] {
        let error = world.publish(&wrong).unwrap_err().to_string();
        assert!(error.contains(word), "{word}: {error}");
        assert_eq!(world.newest().0, None);
    }
    let outside = publish_manifest(world.storage.as_ref(), &world.base, "file:///etc", good);
    assert!(outside.unwrap_err().to_string().contains("not below"));
}

#[test]
fn only_checkpoints_are_removed() {
    let world = World::new();
    let manifest = world.save(1, 1);
    let url = world.publish(&manifest).unwrap();
    let folder = format!("{}/{}", world.base, manifest.directory);
    for wrong in [
        format!("{}/j12", world.base),
        format!("{}/j13/g00000001-c00000001", world.base),
        format!("{}/j12/g1-c1", world.base),
        world.base.clone(),
        "file:///etc".to_owned(),
    ] {
        assert!(remove(JOB, None, &wrong).is_err(), "{wrong} was removed");
    }
    assert!(remove(JOB, Some("file:///etc/passwd"), &folder).is_err());
    assert_eq!(world.newest().0, Some(1));
    remove(JOB, Some(&url), &folder).unwrap();
    remove(JOB, Some(&url), &folder).unwrap();
    assert_eq!(world.newest(), (None, vec![]));
    assert!(FileStorage::new(world.path("j12")).list("").unwrap().is_empty());
}
