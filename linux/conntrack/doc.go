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
// TCP flows are deleted only while they have no answer, and kernels from 5.16 leave out
// the others (CTA_STATUS). Where the flows are known they are looked up and deleted one by one.
//
// A walk through the table costs more than the few entries that it sends: with 262,144 buckets 3 ms of
// CPU for an empty one, 50 ms for one of 100,000 entries. So a Follower, by which core/suspect learns which endpoints do
// not answer, never walks it after its start: the kernel reports new flows (the multicast group of new
// entries, behind a filter for TCP and the DNAT bit, which IPVS does not set), and their states are
// looked up by their addresses. Where there are too many the group is left for a part of the time.
package conntrack
