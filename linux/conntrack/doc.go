// SPDX-License-Identifier: Apache-2.0

// Package conntrack deletes stale flows from the kernel's connection tracking
// table. It is the flows.Table of Linux and speaks ctnetlink (linux/netlink).
//
//	[]flows.Match ──plan──▶ a few dump filters ──▶ kernel walks its table,
//	                                               sends what fits
//	    exact delete  ◀── flows.Index ◀── decode ◀─┘ 32 KiB at a time
//
// The kernel filters (CTA_FILTER, Linux 5.8), because telling user space about
// entries costs ten times as much as looking at them. Its filters know one
// address and port for each direction, so every entry that arrives is judged once
// more by the matches themselves. That also makes older kernels work, which
// reject the filter or do not even see it: they send more than was asked for.
//
// Entries are deleted by their reply tuple, their zone and their id, so that a flow
// that new rules have made anew in the meantime stays. The shorter way, one delete
// request with a filter, is not taken: kernels before 6.8 see a request for a flush
// and empty the whole table.
//
// TCP flows are deleted only as long as they have no answer, and kernels from 5.16 leave out
// the others (CTA_STATUS). The DNAT bit of the status is asked for by an Observer alone, and
// not where IPVS redirects flows, which does so without setting it.
//
// An Observer looks at TCP flows and deletes none: core/suspect learns from it who does
// not answer. Both families are looked at together, as the kernel's walk through its
// table costs more than the few entries that it sends: with 262,144 buckets 6 ms of CPU
// for an empty table, and 50 ms for one of 100,000 entries.
package conntrack
