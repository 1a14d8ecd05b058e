// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queue pairs and the operations that they hold.
//!
//! `qp.rs` makes a reliable connected queue pair and moves it through its states; read it first. `ring.rs` keeps the posted
//! operations in the order of posting, `work.rs` defines an entry of that ring and a work request that is not posted yet, and
//! `tag.rs` is the number by which a completion finds its entry. `template.rs` is the work request that the fast path posts over
//! and over. `retransmit.rs` keeps copies of posted work requests where a connection has several rails, so that they can be posted
//! again by another queue pair. `service.rs` is the second queue pair of a connection, for the library's own messages.
//!
//! A work request comes in and is given to the device; a completion comes in and says which operation it was. Nothing here decides the
//! meaning of an operation; that is in `state` and `ops`.

pub(in crate::prov::verbs) mod qp;
pub(in crate::prov::verbs) mod retransmit;
pub(in crate::prov::verbs) mod ring;
pub(in crate::prov::verbs) mod service;
pub(in crate::prov::verbs) mod tag;
pub(in crate::prov::verbs) mod template;
pub(in crate::prov::verbs) mod work;
