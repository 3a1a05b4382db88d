//! First in, first out.

use model::Shape;

use super::{Ask, Free};

/// Gives each job, in order of arrival, the shape it requested, until one does not fit in what
/// is left of `free`: that one and all behind it get nothing.
///
/// A job without a request, with one outside its bounds, or with one that even the whole cluster
/// could not hold gets nothing and holds up nobody.
#[must_use]
pub fn fifo(total: &[i64], free: &[i64], asks: &[Ask<'_>]) -> Vec<Shape> {
    let mut free = Free::of(free);
    let mut given = vec![Shape::default(); asks.len()];
    let mut order: Vec<usize> = (0..asks.len()).collect();
    order.sort_by_key(|ask| asks[*ask].arrival_ms);
    for at in order {
        let Some(shape) = asks[at].sound_request(total) else { continue };
        if !free.take(&asks[at], Shape::default(), shape) {
            break;
        }
        given[at] = shape;
    }
    given
}
