//! Replicas of one GPU each on nodes: what schedulers of such jobs hand out.

/// So many replicas of a job on a node, by its place in the list of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    pub node: usize,
    pub count: u32,
}

/// Replicas of a job on all its nodes.
#[must_use]
pub fn count(held: &[Replicas]) -> u32 {
    held.iter().fold(0, |sum, here| sum.saturating_add(here.count))
}

/// Takes so many replicas off what is `free` on the nodes: always as many as fit on the node with
/// the most free GPUs, of equal ones on the first. The nodes stand in the order in which they were
/// taken; there are fewer replicas where not as many are free.
pub fn most_free(free: &mut [u32], replicas: u32) -> Vec<Replicas> {
    let mut held = Vec::new();
    let mut left = replicas;
    while left > 0 {
        // The last of the largest, seen from the back, is the first.
        let Some((node, most)) = free.iter_mut().enumerate().rev().max_by_key(|(_, free)| **free)
        else {
            break;
        };
        let count = left.min(*most);
        if count == 0 {
            break;
        }
        *most -= count;
        left -= count;
        held.push(Replicas { node, count });
    }
    held
}

/// Takes off what is free what a job holds; false, and nothing taken, where it is not there.
pub fn take(free: &mut [u32], held: &[Replicas]) -> bool {
    let has = |here: &Replicas| free.get(here.node).is_some_and(|free| *free >= here.count);
    let fits = held.iter().all(has);
    if fits {
        for here in held {
            free[here.node] = free[here.node].saturating_sub(here.count);
        }
    }
    fits
}
