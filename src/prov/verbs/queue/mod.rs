// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queue pairs and the operations that they hold.
//!
//! `qp.rs` makes a reliable connected queue pair and moves it through its states; read it first. `ring.rs` keeps the
//! posted operations in the order of posting. `work.rs` defines an entry of that ring and a work request that is not
//! posted yet. `tag.rs` defines the number by which a completion finds its entry. `template.rs` is the work request
//! that the fast path posts over and over. Where a connection has several rails, `retransmit.rs` keeps copies of posted
//! work requests, so that another queue pair can post them again. `service.rs` is the second queue pair of a
//! connection, for the library's own messages.
//!
//! Work requests come in and go to the device; completions come in and are matched with their operations. The meaning
//! of an operation is decided elsewhere, in `state` and `ops`.

pub(in crate::prov::verbs) mod qp;
pub(in crate::prov::verbs) mod retransmit;
pub(in crate::prov::verbs) mod ring;
pub(in crate::prov::verbs) mod service;
pub(in crate::prov::verbs) mod tag;
pub(in crate::prov::verbs) mod template;
pub(in crate::prov::verbs) mod work;
