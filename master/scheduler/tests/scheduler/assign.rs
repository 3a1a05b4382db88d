//! Parameter assignment (section 5.3): printed cases, every model at hand, and properties.

use proptest::prelude::*;
use scheduler::assign::{Algorithm, Assignment, assign};

/// Parameters of the blocks of one model of `model_blocks.csv`, in order.
fn model(name: &str) -> Vec<u64> {
    let rows = include_str!("../data/model_blocks.csv").lines().skip(1);
    let fields = rows.map(|row| row.split(',').collect::<Vec<_>>());
    fields.filter(|fields| fields[0] == name).map(|fields| fields[3].parse().unwrap()).collect()
}

const MODELS: [&str; 4] = ["lenet", "mlp", "resnet-50", "inception-bn"];

/// Size difference, requests, request difference.
fn measures(assignment: &Assignment) -> [u64; 3] {
    [assignment.size_difference(), assignment.requests(), assignment.request_difference()]
}

fn measured(blocks: &[u64], servers: u32, algorithm: Algorithm) -> [u64; 3] {
    measures(&sound(blocks, servers, algorithm))
}

/// Assigns, and counts everything again.
fn sound(blocks: &[u64], servers: u32, algorithm: Algorithm) -> Assignment {
    let assignment = assign(blocks, servers, algorithm).unwrap();
    assert_eq!(assignment.blocks.len(), blocks.len());
    let mut loads = vec![(0, 0); servers as usize];
    for (size, parts) in blocks.iter().zip(&assignment.blocks) {
        assert_eq!(parts.iter().map(|part| part.parameters).sum::<u64>(), *size);
        let mut on: Vec<u32> = parts.iter().map(|part| part.server).collect();
        on.sort_unstable();
        on.dedup();
        let meet = on.len() < parts.len();
        assert!(!meet || algorithm != Algorithm::Mxnet, "two parts on one server: {parts:?}");
        let has_empty = parts.iter().any(|part| part.parameters == 0);
        assert!(!has_empty || (*size == 0 && parts.len() == 1), "{parts:?}");
        assert!(!parts.is_empty());
        for part in parts {
            let (parameters, requests) = &mut loads[part.server as usize];
            *parameters += part.parameters;
            *requests += 1;
        }
    }
    let told: Vec<(u64, u64)> =
        assignment.servers.iter().map(|load| (load.parameters, load.requests)).collect();
    assert_eq!(told, loads);
    let differences = |of: fn(&(u64, u64)) -> u64| {
        loads.iter().map(of).max().unwrap() - loads.iter().map(of).min().unwrap()
    };
    assert_eq!(assignment.size_difference(), differences(|load| load.0));
    assert_eq!(assignment.request_difference(), differences(|load| load.1));
    assert_eq!(assignment.requests(), loads.iter().map(|load| load.1).sum::<u64>());
    assert_eq!(assign(blocks, servers, algorithm), Ok(assignment.clone()), "deterministic");
    assignment
}

fn no_worse(a: [u64; 3], b: [u64; 3]) -> bool {
    a.iter().zip(b).all(|(a, b)| *a <= b)
}

#[test]
fn resnet_50_on_ten_servers() {
    let blocks = model("resnet-50");
    assert_eq!(measured(&blocks, 10, Algorithm::Mxnet), [1_141_245, 247, 2]);
    let [size, requests, difference] = measured(&blocks, 10, Algorithm::Paa);
    assert_eq!((requests, difference), (157, 1));
    assert!(size <= 105_000, "{size}");
    let best = measured(&blocks, 10, Algorithm::Best);
    assert!(best[0] < 10_000 && best[1..] == [157, 1], "{best:?}");
}

#[test]
fn every_model_is_at_least_as_good_as_by_the_paper() {
    let (mut better, mut cases) = (0, 0);
    for name in MODELS {
        let blocks = model(name);
        for servers in 2..=20 {
            let paa = measured(&blocks, servers, Algorithm::Paa);
            let best = assign(&blocks, servers, Algorithm::Best).unwrap();
            let best = measures(&best);
            assert!(no_worse(best, paa), "{name} on {servers}: {best:?}, the paper's {paa:?}");
            cases += 1;
            better += u32::from(best != paa);
        }
    }
    // All of them, as it is; a few less would still be what was asked for.
    assert!(better >= cases - 4, "{better} of {cases}");
}

/// The paper's algorithm fills one server with large blocks and never comes back.
#[test]
fn inception_on_two_servers_is_level() {
    let blocks = model("inception-bn");
    assert_eq!(measured(&blocks, 2, Algorithm::Paa)[0], 1_431_304);
    assert!(measured(&blocks, 2, Algorithm::Best)[0] <= 64);
}

/// The paper's requests are two apart here, which none need be.
#[test]
fn requests_are_at_most_one_apart() {
    let blocks = [1_052_615, 3, 964, 11_874, 43_708, 4_784_416, 2_149_332, 10, 4_864_140, 63_978];
    assert_eq!(measured(&blocks, 8, Algorithm::Paa)[2], 2);
    assert_eq!(measured(&blocks, 8, Algorithm::Best)[2], 1);
}

#[test]
fn the_paper_is_followed_by_hand() {
    // 300 on 3 servers: avg 100. 150 is cut in two, 90 goes to the empty server, 40 fits under
    // the average nowhere and goes to the first of the two with 75. Then 10 fills the 90 up to
    // 100, and 10 goes to the 75. Nothing is below 1.
    let of = |blocks: &[u64]| {
        let assignment = sound(blocks, 3, Algorithm::Paa);
        assignment.servers.iter().map(|load| (load.parameters, load.requests)).collect::<Vec<_>>()
    };
    assert_eq!(of(&[10, 40, 150, 90, 10]), [(115, 2), (85, 2), (100, 2)]);
    // Blocks of nothing go to the fewest requests.
    assert_eq!(of(&[0, 0, 0, 0]), [(0, 2), (0, 1), (0, 1)]);
    // More servers than parameters: each holds at most one.
    assert_eq!(of(&[2]), [(1, 1), (1, 1), (0, 0)]);
}

#[test]
fn mxnet_cuts_from_a_million_on() {
    let assignment = sound(&[999_999, 1_000_000, 5, 5], 3, Algorithm::Mxnet);
    let parts = |block: usize| -> Vec<(u32, u64)> {
        assignment.blocks[block].iter().map(|part| (part.server, part.parameters)).collect()
    };
    assert_eq!(parts(0), [(0, 999_999)]);
    assert_eq!(parts(1), [(0, 333_333), (1, 333_334), (2, 333_333)]);
    // 9973 leaves 1 of 3.
    assert_eq!((parts(2), parts(3)), (vec![(2, 5)], vec![(0, 5)]));
}

#[test]
fn what_makes_no_sense_is_refused_with_a_remedy() {
    let refused = |blocks: &[u64], servers: u32, field: &str| {
        for algorithm in Algorithm::ALL {
            let error = assign(blocks, servers, algorithm).unwrap_err();
            assert!(error.starts_with(field) && error.contains("; "), "{error}");
        }
    };
    refused(&[1], 0, "servers: 0");
    refused(&[1], u32::MAX, "servers: 4294967295");
    refused(&[], 3, "parameters: ");
    refused(&[u64::MAX, 1], 3, "parameters: ");
    let many = assign(&vec![1_000_000; 10_000], 4096, Algorithm::Mxnet).unwrap_err();
    assert!(many.starts_with("servers: 4096"), "{many}");
    assert_eq!(Algorithm::by_name("paa"), Some(Algorithm::Paa));
    assert_eq!(Algorithm::by_name("PAA"), None);
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::by_name(algorithm.name()), Some(algorithm));
        sound(&[u64::MAX], 4096, algorithm);
        sound(&[u64::MAX - 1, 0, 1], 7, algorithm);
        sound(&[0], 4096, algorithm);
        sound(&[3], 5, algorithm);
        sound(&[5, 0, 0], 1, algorithm);
    }
}

/// Measures of each assignment of whole blocks.
fn all_whole(blocks: &[u64], servers: usize) -> Vec<[u64; 3]> {
    let all = servers.pow(u32::try_from(blocks.len()).unwrap());
    let measured = |number: usize| {
        let mut loads = vec![(0_u64, 0_u64); servers];
        let mut rest = number;
        for size in blocks {
            let load = &mut loads[rest % servers];
            *load = (load.0 + size, load.1 + 1);
            rest /= servers;
        }
        let spread = |of: fn(&(u64, u64)) -> u64| {
            loads.iter().map(of).max().unwrap() - loads.iter().map(of).min().unwrap()
        };
        [spread(|load| load.0), blocks.len() as u64, spread(|load| load.1)]
    };
    (0..all).map(measured).collect()
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![2 => 0_u64..20, 3 => 0_u64..100_000, 2 => 900_000_u64..5_000_000, 1 => 0..1_u64 << 55]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn tiny_models_are_dominated_by_no_assignment_of_whole_blocks(
        blocks in proptest::collection::vec(prop_oneof![0_u64..12, sizes()], 1..=6),
        servers in 1_usize..=3,
    ) {
        let best = measured(&blocks, u32::try_from(servers).unwrap(), Algorithm::Best);
        for other in all_whole(&blocks, servers) {
            prop_assert!(!no_worse(other, best) || other == best, "{other:?} beats {best:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_blocks_are_assigned_soundly_and_no_worse_than_by_the_paper(
        blocks in proptest::collection::vec(sizes(), 1..60), servers in 1_u32..24,
    ) {
        let paa = measured(&blocks, servers, Algorithm::Paa);
        let best = measured(&blocks, servers, Algorithm::Best);
        prop_assert!(no_worse(best, paa), "{best:?}, the paper's {paa:?}");
        measured(&blocks, servers, Algorithm::Mxnet);
    }
}

/// Many blocks on many servers: what the search looks at is bounded.
#[test]
fn large_models_are_no_harder() {
    let size =
        |at: u64| 1 + at * 7919 % 100_003 + if at.is_multiple_of(1000) { 5_000_000 } else { 0 };
    let blocks: Vec<u64> = (0..20_000).map(size).collect();
    for servers in [2, 100, 3000] {
        let paa = measures(&assign(&blocks, servers, Algorithm::Paa).unwrap());
        let best = measures(&assign(&blocks, servers, Algorithm::Best).unwrap());
        assert!(no_worse(best, paa) && best[0] < paa[0], "{best:?}, the paper's {paa:?}");
    }
}
