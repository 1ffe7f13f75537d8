// SPDX-License-Identifier: Apache-2.0

// Package conntrack deletes stale flows from the kernel's connection tracking
// table. It is the flows.Table of Linux and speaks ctnetlink (linux/netlink).
//
//	[]flows.Match ──plan──▶ a few dump filters ──▶ kernel walks its table,
//	                                               sends matches
//	    exact delete  ◀── flows.Index ◀── decode ◀─┘ 32 KiB at a time
//
// The kernel filters (CTA_FILTER, Linux 5.8), because sending entries to user space
// costs ten times as much as looking at them. Its filters hold one address and port
// for each direction, so every entry received is checked again against the matches.
// So older kernels work too, which reject or ignore the filter and send more entries.
//
// Entries are deleted by their reply tuple, their zone and their id, so that a flow
// that new rules have re-created in the meantime is kept. A single delete request
// with a filter would be shorter, but kernels before 6.8 take it for a flush of the
// whole table.
//
// No filter asks for the DNAT status bit, although kernels from 5.16 could: IPVS
// redirects flows without setting it.
package conntrack
