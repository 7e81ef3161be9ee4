//! Test material: the older form, ids as strings.
pub const BURN_ATTESTATION_GATE_HEIGHT: u64 = 0;
pub const LOGS_ROOT_GATE_HEIGHT: u64 = 14_400;

const ACTIVATIONS: &[(&str, u64)] = &[
    ("burn_attestation_required", BURN_ATTESTATION_GATE_HEIGHT),
    ("logs_root_required", LOGS_ROOT_GATE_HEIGHT),
];
