//! Which nodes replicas stand on.

use super::Candidate;

/// Jobs that keep their number stay; the others follow, the largest first, on as few nodes as
/// there is room on.
pub(super) fn place(gpus: &[u16], jobs: &[Candidate<'_>], chosen: &[u32]) -> Vec<Vec<u16>> {
    let mut free = gpus.to_vec();
    let mut rows = vec![vec![0_u16; gpus.len()]; jobs.len()];
    let mut rest: Vec<usize> = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        let held: u32 = job.current.iter().map(|here| u32::from(*here)).sum();
        let known = job.current.len() == gpus.len();
        let fits = known && job.current.iter().zip(&free).all(|(here, free)| here <= free);
        if chosen[at] == 0 {
            continue;
        }
        if held == chosen[at] && fits {
            for (free, here) in free.iter_mut().zip(job.current) {
                *free -= here;
            }
            rows[at].copy_from_slice(job.current);
        } else {
            rest.push(at);
        }
    }
    rest.sort_by(|a, b| chosen[*b].cmp(&chosen[*a]).then(a.cmp(b)));
    for job in rest {
        put(&mut free, &mut rows[job], chosen[job]);
    }
    rows
}

/// The fullest node that holds all; else the emptiest, and then what is left.
fn put(free: &mut [u16], row: &mut [u16], replicas: u32) {
    let mut left = u16::try_from(replicas).unwrap_or(u16::MAX);
    while left > 0 {
        let whole = (0..free.len()).filter(|node| free[*node] >= left);
        let tight = whole.min_by_key(|node| (free[*node], *node));
        let widest = (0..free.len()).max_by_key(|node| (free[*node], free.len() - node));
        let Some(node) = tight.or(widest) else { break };
        let here = left.min(free[node]);
        if here == 0 {
            break;
        }
        free[node] -= here;
        row[node] += here;
        left -= here;
    }
}
