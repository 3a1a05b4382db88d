//! The best rungs of few jobs together: a knapsack with one choice for each job.
//!
//! Rescales make a job's worth jump at the rung that it holds, and giving out step after step then
//! strands what others could use. So all combinations are gone through, job by job, of which
//! equally large ones (to 1/512 of the capacity) are kept only once: the worthiest.

/// Sizes that are told apart.
const SIZES: u16 = 512;
/// Sums of shares may be over the capacity by so much of it: rounding only.
pub(super) const ROUNDING: f64 = 1e-9;

#[derive(Clone, Copy)]
struct Sum {
    share: f64,
    worth: f64,
}

/// How a sum came about: the size before this job, and the option that it took.
#[derive(Clone, Copy, Default)]
struct From {
    size: u16,
    option: u16,
}

/// For each job options of (share, worth); the place of the option that each gets. None where
/// not even the smallest options fit together.
pub(super) fn pack(options: &[Vec<(f64, f64)>], capacity: f64) -> Option<Vec<usize>> {
    let count = usize::from(SIZES) + 1;
    let size = |share: f64| -> usize {
        let part = share / capacity * f64::from(SIZES);
        let (mut low, mut high) = (0, SIZES);
        while low < high {
            let middle = u16::midpoint(low, high) + (low + high) % 2;
            if f64::from(middle) <= part { low = middle } else { high = middle - 1 }
        }
        usize::from(low)
    };
    let sizes: Vec<Vec<usize>> = options
        .iter()
        .map(|options| options.iter().map(|(share, _)| size(*share)).collect())
        .collect();
    let mut sums: Vec<Option<Sum>> = vec![None; count];
    sums[0] = Some(Sum { share: 0.0, worth: 0.0 });
    let mut ways: Vec<Vec<From>> = Vec::with_capacity(options.len());
    for (options, sizes) in options.iter().zip(&sizes) {
        let mut next: Vec<Option<Sum>> = vec![None; count];
        let mut way = vec![From::default(); count];
        for (before, sum) in (0_u16..).zip(&sums) {
            let Some(sum) = sum else { continue };
            for ((option, (share, worth)), wide) in (0_u16..).zip(options).zip(sizes) {
                let all = Sum { share: sum.share + share, worth: sum.worth + worth };
                if all.share > capacity * (1.0 + ROUNDING) {
                    continue;
                }
                // The parts' sizes were rounded down, so the sum's is theirs or one more.
                let mut at = usize::from(before) + wide;
                while at < usize::from(SIZES)
                    && f64::from(u32::try_from(at + 1).unwrap_or(0))
                        <= all.share / capacity * f64::from(SIZES)
                {
                    at += 1;
                }
                let at = at.min(usize::from(SIZES));
                if next[at].is_none_or(|known| all.worth > known.worth) {
                    next[at] = Some(all);
                    way[at] = From { size: before, option };
                }
            }
        }
        sums = next;
        ways.push(way);
    }
    let best = |best: Option<(usize, f64)>, (at, sum): (usize, &Option<Sum>)| match (best, sum) {
        (Some((_, worth)), Some(sum)) if sum.worth <= worth => best,
        (_, Some(sum)) => Some((at, sum.worth)),
        (_, None) => best,
    };
    let (mut at, _) = sums.iter().enumerate().fold(None, best)?;
    let mut taken = vec![0; options.len()];
    for (taken, way) in taken.iter_mut().zip(&ways).rev() {
        *taken = usize::from(way[at].option);
        at = usize::from(way[at].size);
    }
    Some(taken)
}
