//! `cluster.json`: the nodes and what they have.

use std::collections::{BTreeMap, BTreeSet};

use model::job::TASKS_MAX;
use model::resources::NAMED_MAX;
use model::{NodeId, Resources};
use scheduler::snapshot::NodeInput;

use super::file::Source;
use super::json::{At, Faults, Fields, Json, parse};
use crate::failure::Failure;

/// Most nodes: ten times the largest cluster that a round is measured on.
const NODES_MAX: u64 = 1_000_000;
/// Most kinds of resources beside CPUs, memory and GPUs in one file: a round looks at every kind
/// on every node.
pub(super) const KINDS_MAX: usize = 64;

/// Nodes sorted by id, and what they have together.
#[derive(Debug)]
pub(super) struct Cluster {
    pub nodes: Vec<NodeInput>,
    /// By kind as the files name it; CPUs in thousandths.
    pub total: BTreeMap<String, u128>,
}

impl Cluster {
    /// The node of this name.
    pub(super) fn find(&self, name: &str) -> Option<&NodeInput> {
        let place = self.nodes.binary_search_by(|node| node.id.as_str().cmp(name)).ok()?;
        Some(&self.nodes[place])
    }

    /// How many such tasks the cluster's total holds, of each kind apart.
    pub(super) fn holds(&self, task: &Resources) -> u32 {
        let total = |kind: &str| self.total.get(kind).copied().unwrap_or(0);
        amounts(task)
            .filter(|(_, need)| *need > 0)
            .map(|(kind, need)| total(kind) / u128::from(need))
            .fold(TASKS_MAX, |most, count| most.min(u32::try_from(count).unwrap_or(u32::MAX)))
    }
}

/// The amounts of a bundle by kind as the files name it; CPUs in thousandths.
pub(super) fn amounts(resources: &Resources) -> impl Iterator<Item = (&str, u64)> {
    [
        ("cpus", resources.cpus_milli),
        ("memory_bytes", resources.memory_bytes),
        ("gpus", resources.gpus),
    ]
    .into_iter()
    .chain(resources.named.iter().map(|(kind, amount)| (kind.as_str(), *amount)))
}

/// Reads the file.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn read(source: &Source) -> Result<Cluster, Failure> {
    let json = parse(source)?;
    let mut faults = Faults::default();
    let top = At::Top;
    let mut nodes = Vec::new();
    if let Some(fields) = faults.object(&json, &top, &["nodes"])
        && let Some(list) = fields.need("nodes", &mut faults)
    {
        let at = top.field("nodes");
        let mut left = NODES_MAX;
        for (index, item) in faults.list(list, &at).iter().enumerate() {
            node(item, &at.item(index), index, &mut left, (&mut nodes, &mut faults));
        }
        nodes.sort_by(|a, b| a.0.id.cmp(&b.0.id));
        for pair in nodes.windows(2).filter(|pair| pair[0].0.id == pair[1].0.id) {
            let problem = format!("{} is the id of another node", pair[1].0.id);
            faults.add(&at.item(pair[1].1).field("id"), problem, "give each its own");
        }
    }
    let nodes: Vec<NodeInput> = nodes.into_iter().map(|(node, _)| node).collect();
    let mut total: BTreeMap<String, u128> = BTreeMap::new();
    for node in &nodes {
        for (kind, amount) in amounts(&node.capacity) {
            match total.get_mut(kind) {
                Some(sum) => *sum += u128::from(amount),
                None => drop(total.insert(kind.to_owned(), u128::from(amount))),
            }
        }
    }
    if total.len() > KINDS_MAX + 3 {
        too_many_kinds(&top.field("nodes"), &mut faults);
    }
    faults.none(source)?;
    Ok(Cluster { nodes, total })
}

pub(super) fn too_many_kinds(at: &At<'_>, faults: &mut Faults) {
    let problem = format!("name more than {KINDS_MAX} kinds of resources");
    faults.add(at, problem, "leave out what no task takes");
}

/// One entry: one node, or `count` of them.
fn node(
    json: &Json,
    at: &At<'_>,
    index: usize,
    left: &mut u64,
    (nodes, faults): (&mut Vec<(NodeInput, usize)>, &mut Faults),
) {
    let Some(fields) = faults.object(json, at, &["id", "resources", "count"]) else { return };
    let id = fields.need("id", faults).and_then(|json| faults.text(json, &at.field("id")));
    let resources_at = at.field("resources");
    let capacity =
        fields.need("resources", faults).and_then(|json| resources(json, &resources_at, faults));
    let count = fields.find("count").map(|json| {
        let count = faults.whole(json, &at.field("count"), (1, NODES_MAX));
        count.unwrap_or(1)
    });
    let Some(rest) = left.checked_sub(count.unwrap_or(1)) else {
        faults.add(&at.field("count"), format!("makes more than {NODES_MAX} nodes"), "give fewer");
        *left = 0;
        return;
    };
    *left = rest;
    let (Some(id), Some(capacity)) = (id, capacity) else { return };
    let mut add = |name: &str| match NodeId::for_file(name) {
        Ok(id) => {
            let node = NodeInput {
                id,
                capacity: capacity.clone(),
                held: Resources::default(),
                open: true,
            };
            nodes.push((node, index));
            true
        }
        Err(error) => {
            faults.add(&at.field("id"), format!("is {:?}", error.given), error.remedy);
            false
        }
    };
    match count {
        None => drop(add(id)),
        // The first name that is refused stands for the others.
        Some(count) => drop((0..count).all(|number| add(&format!("{id}-{number}")))),
    }
}

/// Amounts by kind: CPUs as decimals, all others whole.
pub(super) fn resources(json: &Json, at: &At<'_>, faults: &mut Faults) -> Option<Resources> {
    let fields: Fields<'_, '_> = faults.any_object(json, at)?;
    let mut resources = Resources::default();
    let mut fine = true;
    for (kind, json) in fields.all {
        let at = at.field(kind);
        let mut whole = |faults: &mut Faults| {
            let amount = faults.whole(json, &at, (0, u64::MAX));
            fine &= amount.is_some();
            amount.unwrap_or(0)
        };
        match kind.as_str() {
            "cpus" => match cpus(json, &at, faults) {
                Some(milli) => resources.cpus_milli = milli,
                None => fine = false,
            },
            "memory_bytes" => resources.memory_bytes = whole(faults),
            "gpus" => resources.gpus = whole(faults),
            other => {
                let amount = whole(faults);
                if !is_kind(other) {
                    faults.add(&at, "is not a kind of resource", "memory_bytes, or a plain name");
                    fine = false;
                }
                resources.named.insert(other.to_owned(), amount);
            }
        }
    }
    if resources.named.len() > NAMED_MAX {
        faults.add(at, format!("names more than {NAMED_MAX} other kinds"), "leave some out");
        fine = false;
    }
    fine.then_some(resources)
}

/// Within the scheduler `memory` names the bytes, so nothing else may be called so.
fn is_kind(name: &str) -> bool {
    (1..=63).contains(&name.chars().count())
        && model::text::text_problem(name, 4 * 63).is_none()
        && name != "memory"
}

fn cpus(json: &Json, at: &At<'_>, faults: &mut Faults) -> Option<u64> {
    let wanted = "a decimal of at most three places, such as 1.5, up to 1000000";
    let fits = |cores: f64| model::units::cpus_milli(cores).is_ok();
    let cores = faults.number(json, at, wanted, fits)?;
    model::units::cpus_milli(cores).ok()
}

/// Kinds that tasks name beside CPUs, memory and GPUs.
pub(super) fn named<'a>(tasks: impl Iterator<Item = &'a Resources>) -> usize {
    tasks.flat_map(|task| task.named.keys()).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(text: &str) -> Result<Cluster, Failure> {
        read(&Source { name: "c.json".to_owned(), text: text.to_owned() })
    }

    #[test]
    fn nodes_are_counted_out_sorted_and_added_up() {
        let text = r#"{"nodes": [
            {"id": "z é", "resources": {"cpus": 2.5, "gpus": 1, "fpga": 3}},
            {"id": "a", "count": 11, "resources": {"cpus": 1, "memory_bytes": 9223372036854775808}}
        ]}"#;
        let cluster = cluster(text).unwrap();
        let ids: Vec<&str> = cluster.nodes.iter().map(|node| node.id.as_str()).collect();
        assert_eq!(ids[..4], ["a-0", "a-1", "a-10", "a-2"]);
        assert_eq!(cluster.find("z é").unwrap().capacity.cpus_milli, 2500);
        assert!(cluster.find("a").is_none());
        assert_eq!(cluster.total["cpus"], 13_500);
        assert_eq!(cluster.total["memory_bytes"], 11 << 63);
        assert_eq!(cluster.holds(&Resources::new(1000, 0, 0)), 13);
        assert_eq!(cluster.holds(&Resources::new(1, 1, 0)), TASKS_MAX);
        assert_eq!(cluster.holds(&Resources::new(1000, 0, 2)), 0);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let node = |rest: &str| format!(r#"{{"nodes": [{{"id": "n", {rest}}}]}}"#);
        for (text, part) in [
            ("[]".to_owned(), "file: is a list"),
            ("{}".to_owned(), "nodes: is missing"),
            (r#"{"nodes": {}}"#.to_owned(), "nodes: is an object"),
            (r#"{"nodes": [7]}"#.to_owned(), "nodes[0]: is a number"),
            (r#"{"nodes": [{}]}"#.to_owned(), "nodes[0].id: is missing"),
            (r#"{"nodes": [{"id": "n"}]}"#.to_owned(), "nodes[0].resources: is missing"),
            (r#"{"nodes": [{"id": "", "resources": {}}]}"#.to_owned(), "nodes[0].id"),
            (r#"{"nodes": [{"id": "a\nb", "resources": {}}]}"#.to_owned(), "nodes[0].id"),
            (node(r#""resources": {"cpus": 1.0005}"#), "nodes[0].resources.cpus: is 1.0005"),
            (node(r#""resources": {"cpus": -1}"#), "nodes[0].resources.cpus: is -1"),
            (node(r#""resources": {"cpus": 1e308}"#), "nodes[0].resources.cpus: is 1e308"),
            (node(r#""resources": {"cpus": "1"}"#), "nodes[0].resources.cpus: is a text"),
            (node(r#""resources": {"memory_bytes": 1.5}"#), "memory_bytes: is 1.5"),
            (node(r#""resources": {"gpus": -1}"#), "nodes[0].resources.gpus: is -1"),
            (node(r#""resources": {"fpga": 0.5}"#), "nodes[0].resources.fpga: is 0.5"),
            (node(r#""resources": {"memory": 5}"#), "nodes[0].resources.memory: is not"),
            (node(r#""resources": {"cpus": 1, "cpus": 2}"#), "cpus: comes twice"),
            (node(r#""resources": {}, "count": 0"#), "nodes[0].count: is 0"),
            (node(r#""resources": {}, "count": 1e9"#), "nodes[0].count"),
            (node(r#""resources": {}, "cont": 2"#), "did you mean count?"),
        ] {
            let failure = cluster(&text).expect_err(&text);
            assert_eq!(failure.exit.code(), 2);
            assert!(failure.to_string().contains(part), "{text}: {failure}");
        }
        let twice = r#"{"nodes": [{"id": "n-1", "resources": {}},
                                  {"id": "n", "count": 2, "resources": {}}]}"#;
        let failure = cluster(twice).expect_err("n-1 comes twice");
        assert!(failure.to_string().contains("nodes[1].id: n-1 is the id"), "{failure}");
    }
}
