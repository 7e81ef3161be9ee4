//! Test material: a list of activation heights in the form that the node's source has, with prose that must not be read.
//!
//! Step 1: add `("feature_id", activation_height)` to `ACTIVATIONS`. Step 2: `const ACTIVATIONS: &[(&str, u64)] = &[("prose", 1)];`

/// Rule `burn_attestation_required`: below the height the earlier rule holds. 0 = from genesis; 777_600 is only prose.
pub const BURN_ATTESTATION_GATE_HEIGHT: u64 = 0;

/// Rule `registry_root_required`: below the height the earlier rule holds. 0 = from genesis; 777_600 is only prose.
pub const REGISTRY_ROOT_GATE_HEIGHT: u64 = 0;

/// Rule `light_reg_epoch_roster`: below the height the earlier rule holds. 0 = from genesis; 777_600 is only prose.
pub const LIGHT_REG_EPOCH_ROSTER_GATE_HEIGHT: u64 = 0;

/// Rule `logs_root_required`: below the height the earlier rule holds. 0 = from genesis; 777_600 is only prose.
pub const LOGS_ROOT_GATE_HEIGHT: u64 = 0;

/// Rule `light_key_commitment`: below the height the earlier rule holds. 0 = from genesis; 777_600 is only prose.
pub const LIGHT_KEY_COMMITMENT_GATE_HEIGHT: u64 = 691_200;

/// Rule `light_shard_backup_owners`: below the height the earlier rule holds. 0 = from genesis; 777_600 is only prose.
pub const LIGHT_SHARD_BACKUP_OWNERS_GATE_HEIGHT: u64 = 691_200;

/// Rule `gas_metering`: below the height the earlier rule holds. 0 = from genesis; 777_600 is only prose.
pub const GAS_METERING_GATE_HEIGHT: u64 = qnet_state_gas_metering_height();
/* pub const GAS_METERING_GATE_HEIGHT: u64 = 5; /* nested */ */

/// Rule `slot_gap_reanchor`: below the height the earlier rule holds. 0 = from genesis; 777_600 is only prose.
pub const SLOT_GAP_REANCHOR_GATE_HEIGHT: u64 = 1_339_200;

/// Rule `contract_gas_signed`: below the height the earlier rule holds. 0 = from genesis; 777_600 is only prose.
pub const CONTRACT_GAS_SIGNED_GATE_HEIGHT: u64 = 1_497_600u64;

/// First set at 1,584,000, epoch 110, which the chain crossed on another binary.
/// pub const MICROBLOCK_SIG_RAW_GATE_HEIGHT: u64 = 1_584_000;
pub const MICROBLOCK_SIG_RAW_GATE_HEIGHT: u64 = 1_612_800;

/// Rule `tx_target_bound`: below the height the earlier rule holds. 0 = from genesis; 777_600 is only prose.
pub const TX_TARGET_BOUND_GATE_HEIGHT: u64 = 3_657_600;

/// Rule `wallet_one_node`: below the height the earlier rule holds. 0 = from genesis; 777_600 is only prose.
pub const WALLET_ONE_NODE_GATE_HEIGHT: u64 = TX_TARGET_BOUND_GATE_HEIGHT;

/// Rule `failover_tenure_bound`: below the height the earlier rule holds. 0 = from genesis; 777_600 is only prose.
pub const FAILOVER_TENURE_BOUND_GATE_HEIGHT: u64 = 3_657_600;

/// The number itself is kept beside the code that charges.
const fn qnet_state_gas_metering_height() -> u64 { crate::transaction::GAS_METERING_ACTIVATION_HEIGHT }

/// Names, each spelled once.
pub mod id {
    pub const BURN_ATTESTATION_REQUIRED: &str = "burn_attestation_required";
    pub const REGISTRY_ROOT_REQUIRED: &str = "registry_root_required";
    pub const LIGHT_REG_EPOCH_ROSTER: &str = "light_reg_epoch_roster";
    pub const LOGS_ROOT_REQUIRED: &str = "logs_root_required";
    pub const REWARD_EPOCH_ROOT_REQUIRED: &str = "reward_epoch_root_required";
    pub const LIGHT_KEY_COMMITMENT: &str = "light_key_commitment";
    pub const LIGHT_SHARD_BACKUP_OWNERS: &str = "light_shard_backup_owners";
    pub const GAS_METERING: &str = "gas_metering";
    pub const SLOT_GAP_REANCHOR: &str = "slot_gap_reanchor";
    pub const CONTRACT_GAS_SIGNED: &str = "contract_gas_signed";
    pub const MICROBLOCK_SIG_RAW: &str = "microblock_sig_raw";
    pub const TX_TARGET_BOUND: &str = "tx_target_bound";
    pub const WALLET_ONE_NODE: &str = "wallet_one_node";
    pub const FAILOVER_TENURE_BOUND: &str = "failover_tenure_bound";
    /// Active from genesis on purpose: it has no entry.
    pub const RECENCY_SPAN_EPOCH: &str = "recency_span_epoch";
    // pub const GHOST: &str = "ghost";
}

/// (feature id, activation height). What is not listed is active.
const ACTIVATIONS: &[(&str, u64)] = &[
    (id::BURN_ATTESTATION_REQUIRED, BURN_ATTESTATION_GATE_HEIGHT),
    (id::REGISTRY_ROOT_REQUIRED, REGISTRY_ROOT_GATE_HEIGHT),
    (id::LIGHT_REG_EPOCH_ROSTER, LIGHT_REG_EPOCH_ROSTER_GATE_HEIGHT),
    (id::LOGS_ROOT_REQUIRED, LOGS_ROOT_GATE_HEIGHT),
    // Active from genesis: (id::REWARD_EPOCH_ROOT_REQUIRED, 14_400), would be another rule.
    (id::REWARD_EPOCH_ROOT_REQUIRED, 0),
    (id::LIGHT_KEY_COMMITMENT, LIGHT_KEY_COMMITMENT_GATE_HEIGHT),
    (id::LIGHT_SHARD_BACKUP_OWNERS, LIGHT_SHARD_BACKUP_OWNERS_GATE_HEIGHT),
    (id::GAS_METERING, GAS_METERING_GATE_HEIGHT),
    (id::SLOT_GAP_REANCHOR, SLOT_GAP_REANCHOR_GATE_HEIGHT),
    (id::CONTRACT_GAS_SIGNED, CONTRACT_GAS_SIGNED_GATE_HEIGHT),
    (id::MICROBLOCK_SIG_RAW, MICROBLOCK_SIG_RAW_GATE_HEIGHT),
    (id::TX_TARGET_BOUND, TX_TARGET_BOUND_GATE_HEIGHT),
    (id::WALLET_ONE_NODE, WALLET_ONE_NODE_GATE_HEIGHT),
    (id::FAILOVER_TENURE_BOUND, FAILOVER_TENURE_BOUND_GATE_HEIGHT),
    // (id::GHOST, 1_000_000),
];

/// Whether a rule holds at a height.
pub fn is_active(feature: &str, height: u64) -> bool {
    ACTIVATIONS.iter().find(|(f, _)| *f == feature).map_or(true, |(_, h)| height >= *h)
}

#[cfg(test)]
mod tests {
    const ACTIVATIONS: &[(&str, u64)] = &[("feature_x", 1000u64)];
    pub const TX_TARGET_BOUND_GATE_HEIGHT: u64 = 1;

    #[test]
    fn a_list_of_its_own() { assert_eq!(ACTIVATIONS[0].1, 1000); assert!(r#"const ACTIVATIONS"#.len() > 0); }
}
