// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names and limits that several variables, or variables and providers, share.

/// Every provider, whether or not this build has it.
pub const PROVIDERS: [&str; 3] = ["shm", "tcp", "verbs"];

/// The providers and combinations of providers that connectionless endpoints can use, in the order in which they are
/// offered.
pub const SETS: [&str; 5] = ["shm+verbs+tcp", "shm+tcp", "verbs", "shm", "tcp"];

/// Words of `GDRFAB_PATHS`, in the order of the path bits.
pub const PATHS: [&str; 8] = ["direct", "cma", "staged", "ipc", "nic", "dmabuf", "peer-mem", "socket"];

/// Variables that decide who may connect. A mistyped name of one of these is an error (`spelling`).
pub const SECURITY: [&str; 3] = ["GDRFAB_TCP_KEY_FILE", "GDRFAB_TCP_SECURITY", "GDRFAB_SHM_USERS"];

/// Words of `GDRFAB_TCP_SECURITY`.
pub const TCP_SECURITY: [&str; 3] = ["none", "greeting", "sealed"];

/// Words of `GDRFAB_HMEM`, in the order of the numbers of `hmem::Iface`, from 1.
pub const HMEM_WORDS: [&str; 5] = ["cuda", "rocr", "ze", "neuron", "synapseai"];

/// Words of `GDRFAB_HMEM_DRIVER` that can be combined; the word `caller` stands alone.
pub const DRIVER_WORDS: [&str; 3] = ["adopt", "thread", "process"];

/// Largest length in bytes of a message that travels through a ring of the shm provider, whatever the settings.
pub const RING_MOST: usize = 8192;
