// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a connection: from a connect or accept call to two linked endpoints, and to the end of both.
//!
//! `cm.rs` connects and accepts, and reads the control socket of a live connection; read it first. `pep.rs` is a
//! passive endpoint. `leaving.rs` ends connections and single operations, but no operation whose buffer a peer or a
//! device still uses. `info.rs` tells the paths and attributes that the provider offers on this host.

pub(in crate::prov::shm) mod cm;
pub(in crate::prov::shm) mod info;
pub(in crate::prov::shm) mod leaving;
pub(in crate::prov::shm) mod pep;
