use super::*;

const KEYS: [Key; 8] = [
    Key::required("name", Want::Text),
    Key::optional("worker.count.min", Want::Integer(16)),
    Key::required("worker.memory", Want::Size),
    Key::optional("every", Want::Duration),
    Key::optional("mode", Want::Word(&["sync", "async"])),
    Key::optional("environment", Want::FreeTexts),
    Key::optional("named", Want::FreeIntegers),
    Key::optional("ports", Want::Ports),
];

fn faults(text: &str) -> Vec<String> {
    let located = Document::read(text, &KEYS).sorted();
    let line = |line: Option<usize>| line.map_or_else(|| "-".to_owned(), |line| line.to_string());
    located.iter().map(|located| format!("{} {}", line(located.line), located.fault)).collect()
}

#[test]
fn a_right_file_reads() {
    let text = "name = 'a'\nevery = '90s'\n[worker]\nmemory = '1KiB'\ncount = { min = 0x10 }";
    let document = Document::read(text, &KEYS);
    assert_eq!(document.faults, []);
    assert_eq!(document.values["worker.count.min"], Value::Integer(16));
    assert_eq!(document.values["worker.memory"], Value::Bytes(1024));
    assert_eq!(document.values["every"], Value::Duration(90_000));
    assert_eq!(document.line("worker.count.min"), Some(5));
    assert_eq!(document.line("worker"), Some(3));
}

#[test]
fn every_fault_has_its_line_and_remedy() {
    let text = "nam = 'a'\nevery = 90\nmode = 'synch'\nports = [1]\n[worker]\nmemory = 512\n\
                count = 3\n[environment]\nA = 1\nB = true\n[named]\nx = -1\n";
    assert_eq!(
        faults(text),
        [
            "1 nam: is not a known key; did you mean name?",
            "2 every: 90 has no unit; write \"90s\", \"90m\" or \"90h\"",
            "3 mode: \"synch\" is not known; did you mean \"sync\"?",
            "4 ports: is not a list of two port numbers; write such as [21000, 29999]",
            "6 worker.memory: 512 has no unit; write \"512MiB\", \"512GiB\" or \"512B\"",
            "7 worker.count: is a number, not a table; write [worker.count] with min below it",
            "9 environment.A: is a number, not a text; put the value in quotes",
            "10 environment.B: is true or false, not a text; put the value in quotes",
            "12 named.x: -1 is out of range; give 0 to 9223372036854775807",
        ]
    );
}

#[test]
fn syntax_errors_have_lines_and_hide_no_other_fault() {
    let found = faults("name = 'a\nevery = 90\nmode = = 3\n");
    assert!(found.iter().any(|fault| fault.starts_with("1 syntax")), "{found:?}");
    assert!(found.iter().any(|fault| fault.starts_with("3 syntax")), "{found:?}");
    assert!(found.iter().any(|fault| fault.starts_with("2 every")), "{found:?}");
    assert!(!found.iter().any(|fault| fault.contains("missing")), "{found:?}");
}

#[test]
fn a_key_in_the_wrong_place_is_found() {
    let found = faults("name = 'a'\nmemory = '1B'\nworker_memory = '1B'\n[worker]\nmemory='1B'");
    assert!(found[0].contains("did you mean worker.memory?"), "{found:?}");
    assert!(found[1].contains("did you mean worker.memory?"), "{found:?}");
}
