//! Test material: a file of constants in the form of the node's genesis_constants.rs.

/// Codes of the first nodes.
pub const GENESIS_CODES: &[&str] = &[
    "CODE-0001",
    "CODE-0002", 
];

pub const GENESIS_KEYS: &[(&str, &str)] = &[
    ("genesis_node_001", "0b30557a9fc4e90e33587da2c7ec11365b80a5caef14395e83a8cdf2173c6186abd0f51a3f6489aed3f81d42678cb1d6fb20456a8fb4d9fe23486d92b7dc01264b7095badf04294e7398bde2072c51769bc0e50a2f54799ec3e80d32577ca1c6eb10355a7fa4c9ee13385d82a7ccf1163b6085aacff4193e6388add2f71c41668bb0d5fa1f44698eb3d8fd22476c91b6db00254a6f94b9de03284d7297bce1062b50759abfe4092e53789dc2e70c31567ba0c5ea0f34597ea3c8ed12375c81a6cbf0153a5f84a9cef3183d6287acd1f61b40658aafd4f91e43688db2d7fc21466b90b5daff24496e93b8dd02274c7196bbe0052a4f7499bee3082d52779cc1e60b30557a9fc4e90e33587da2c7ec11365b80a5caef14395e83a8cdf2173c6186abd0f51a3f6489aed3f81d42678cb1d6fb20456a8fb4d9fe23486d92b7dc01264b7095badf04294e7398bde2072c51769bc0e50a2f54799ec3e80d32577ca1c6eb10355a7fa4c9ee13385d82a7ccf1163b6085aacff4193e6388add2f71c41668bb0d5fa1f44698eb3d8fd22476c91b6db00254a6f94b9de03284d7297bce1062b50759abfe4092e53789dc2e70c31567ba0c5ea0f34597ea3c8ed12375c81a6cbf0153a5f84a9cef3183d6287acd1f61b40658aafd4f91e43688db2d7fc21466b90b5daff24496e93b8dd02274c7196bbe0052a4f7499bee3082d52779cc1e60b30557a9fc4e90e33587da2c7ec11365b80a5caef14395e83a8cdf2173c6186abd0f51a3f6489aed3f81d42678cb1d6fb20456a8fb4d9fe23486d92b7dc01264b7095badf04294e7398bde2072c51769bc0e50a2f54799e"),
];

/// The checkpoint, (index, hash). A fresh chain has `WS_CHECKPOINT: (u64, [u8; 32]) = (0, [0u8; 32]);`, which is inert.
/// An earlier release had:
// pub const WS_CHECKPOINT: (u64, [u8; 32]) = (7, [7u8; 32]);
/* pub const WS_CHECKPOINT_DIGEST_ANCHOR: [u8; 32] = [7u8; 32];
   /* pub const RESTART_MANIFEST: RestartManifest = RestartManifest { resume_from_mb: 7 }; */ */
pub const WS_CHECKPOINT: (u64, [u8; 32]) = (0, [0u8; 32]);

pub fn ws_checkpoint_index() -> u64 { WS_CHECKPOINT.0 }

/// Digests of WS_CHECKPOINT and of the macroblock before it.
pub const WS_CHECKPOINT_DIGEST_ANCHOR: [u8; 32] = [0u8; 32];
pub const WS_CHECKPOINT_DIGEST_PRED: [u8; 32] = [0u8; 32];

pub struct RestartManifest {
    pub resume_from_mb: u64,
    /// Hash of `resume_from_mb: 5`.
    pub resume_mb_hash: [u8; 32],
    pub excluded: &'static [&'static str],
}

/// What this build carries.
pub const RESTART_MANIFEST: RestartManifest = RestartManifest {
    resume_from_mb: 0,
    resume_mb_hash: [0u8; 32],
    excluded: &[],
};

pub fn restart_excludes(id: &str) -> bool {
    const RESTART_MANIFEST_TEXT: &str = "RESTART_MANIFEST: RestartManifest = RestartManifest { resume_from_mb: 9 }";
    let quote = '"';
    RESTART_MANIFEST.excluded.iter().any(|e| *e == id) || id == RESTART_MANIFEST_TEXT || id.contains(quote)
}

#[cfg(test)]
mod tests {
    pub const WS_CHECKPOINT: (u64, [u8; 32]) = (9, [9u8; 32]);
}
