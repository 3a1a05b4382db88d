//! Masters of the versions before: what they know works, what they do not is refused by name.

use model::client::{Answer, Call, Read};

use crate::fake::{Does, Fake};

fn answers() -> impl Fn(&model::client::Request) -> Does + Send + Sync + 'static {
    |request| {
        let answer = match &request.call {
            Call::Read(Read::Jobs) => Answer::Jobs(vec![]),
            Call::Read(Read::Nodes) => Answer::Nodes(vec![]),
            other @ (Call::Read(_) | Call::Change(_) | Call::Certificate(_)) => {
                panic!("an older master is asked {other:?}")
            }
        };
        Does::Replies(vec![Ok(answer)])
    }
}

#[test]
fn an_older_master_is_not_asked_what_it_cannot_read() {
    for newest in 1..=3 {
        // It knows no admins: the operator's certificate beside is shown instead.
        let fake = Fake::start_at(1..=newest, answers());
        for words in ["ps -o json", "nodes -o json"] {
            let ran = fake.run(words);
            assert_eq!(ran.code, Some(0), "{words}: {}", ran.err);
        }
        let ran = fake.run("audit");
        assert_eq!(ran.code, Some(6), "{}", ran.err);
        for word in ["audit needs a master of protocol 4", "fake 0.0.0", &newest.to_string()] {
            assert!(ran.err.contains(word), "no {word:?} in {}", ran.err);
        }
        assert!(ran.err.contains("upgrade the master"), "{}", ran.err);
    }
}

#[test]
fn a_field_that_an_older_master_would_lose_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.toml");
    let job = std::fs::read_to_string("tests/golden/job.toml").unwrap();
    let shared = "checkpoint_shared = true\n";
    for (lines, newest, fields) in [
        ("on_nan = \"stop\"\n".to_owned(), 3, "on_nan"),
        (format!("on_nan = \"stop\"\n{shared}"), 3, "on_nan"),
        (format!("on_nan = \"stop\"\n{shared}"), 2, "checkpoint_shared, on_nan"),
        (shared.to_owned(), 1, "checkpoint_shared"),
    ] {
        std::fs::write(&path, format!("{lines}{job}")).unwrap();
        let fake = Fake::start_at(1..=newest, answers());
        let ran = fake.run(&format!("submit {}", path.display()));
        assert_eq!(ran.code, Some(6), "{}", ran.err);
        assert!(
            ran.err.contains(&format!("submit with {fields} needs a master of")),
            "{}",
            ran.err
        );
        assert!(ran.err.contains(&format!("leave {fields} out of the job's file")), "{}", ran.err);
        assert!(ran.err.contains(&format!("speaks {newest}")), "{}", ran.err);
    }
}
