use scheduler::goodput::Limits;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    pub local: u32,
    pub accumulation: u32,
}
impl Batch {
    pub fn total(self, replicas: u32) -> f64 {
        f64::from(replicas) * f64::from(self.local) * (f64::from(self.accumulation) + 1.0)
    }
}
pub fn fixed(limits: &Limits, replicas: u32, total: u32) -> Option<Batch> {
    if replicas == 0 || limits.local_max == 0 {
        return None;
    }
    let local = total.div_ceil(replicas);
    let mut passes = local.div_ceil(limits.local_max).max(1);
    if replicas == 1 && total > limits.initial {
        passes = passes.max(2);
    }
    let most = u64::from(limits.batch_max) / (u64::from(replicas) * u64::from(passes));
    let local = local.div_ceil(passes).min(limits.local_max);
    let local = u32::try_from(u64::from(local).min(most)).expect("no more than a u32");
    (local > 0).then_some(Batch { local, accumulation: passes - 1 })
}
