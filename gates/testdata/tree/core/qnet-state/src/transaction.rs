//! Test material: the other module that a height may stand in.

/// Activated at block 200_000? No: see the constant.
pub const GAS_METERING_ACTIVATION_HEIGHT: u64 = 100_000;

pub struct Transaction { pub hash: String }
