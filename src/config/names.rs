// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names and limits that several variables share.

/// Every provider, whether or not this build has it.
pub const PROVIDERS: [&str; 3] = ["shm", "tcp", "verbs"];

/// The providers, and combinations of providers, for connectionless endpoints, best first.
pub const SETS: [&str; 5] = ["shm+verbs+tcp", "shm+tcp", "verbs", "shm", "tcp"];

/// Words of `GDRFAB_SHM_PATHS` and their path bits.
pub const SHM_PATHS: [(&str, u64); 4] = [("direct", 1), ("cma", 2), ("staged", 4), ("ipc", 8)];

/// Words of `GDRFAB_TCP_PATHS` and their path bits.
pub const TCP_PATHS: [(&str, u64); 2] = [("staged", 1 << 2), ("socket", 1 << 7)];

/// Variables that decide who may connect.
pub const SECURITY: [&str; 3] = ["GDRFAB_TCP_KEY_FILE", "GDRFAB_TCP_SECURITY", "GDRFAB_SHM_USERS"];

/// Words of `GDRFAB_TCP_SECURITY`.
pub const TCP_SECURITY: [&str; 3] = ["none", "greeting", "sealed"];

/// Words of `GDRFAB_VERBS_PATHS` and their path bits.
pub const VERBS_PATHS: [(&str, u64); 4] = [("staged", 1 << 2), ("nic", 1 << 4), ("dmabuf", 1 << 5), ("peer-mem", 1 << 6)];

/// Words of `GDRFAB_HMEM`, in the order of the interfaces' numbers from 1.
pub const HMEM_WORDS: [&str; 5] = ["cuda", "rocr", "ze", "neuron", "synapseai"];

/// Largest length in bytes of a message that travels through a ring of the shm provider, whatever the settings.
pub const RING_MOST: usize = 8192;
