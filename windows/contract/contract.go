// SPDX-License-Identifier: Apache-2.0

// Package contract states what Tandem relies on in the Host Networking Service, as a list of
// small experiments. Each creates objects of its own, asks HNS one question, and deletes
// the objects. They run on the emulator, where all answers must be as expected, and on a
// real machine, where the answers become a report:
//
//	All ──Run──▶ lab ──dll.Request──▶ HNS ── computenetwork.dll (Local), or windows/test/hnsemu
//	                │
//	                ▼ an answer in a few words: "ok", "0x803b0013", "kept"
//	             Report ──JSON──▶ Compare: the answers that the emulator must change
//	                            windows/test/hnsemu/reports: its answers from then on, by version
//
// An experiment's id is "RULE/WHAT", by the rule of the emulator (go doc
// ./windows/test/hnsemu) that it tests. A rule whose source is "assumed" has at least one.
//
// # What a run does to a machine
//
// It creates networks named tandem-test-hns and tandem-test-hns-2: one of type NAT, which
// needs no adapter, and, if an adapter is given, one of type L2Bridge or Overlay on it,
// which may interrupt the adapter's connections for some seconds. Their addresses are in
// 198.18.0.0/15, reserved for benchmarks (RFC 2544), their ports 7, 9 and those from 20,000, at two of
// which it listens for a moment. It deletes its objects after each experiment and at the end, also when it is
// interrupted; what a killed run has left is deleted at the beginning of the next. Only networks
// with these names and objects that the run created are deleted. A run makes at most maxCalls
// calls, and as many again to delete objects. A call that does not return within patience ends the run.
//
// A report has the version of Windows and of HNS, and for each experiment a code, a number
// or a text of this package: no name, address or text that HNS returned.
package contract

import (
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/hns/dll"
)

// HNS makes calls of the functions of an HNS.
type HNS = dll.Caller

// Service stops and starts the service of HNS.
type Service interface {
	Stop() error
	Start() error
}

// Origin is the sender of a packet.
type Origin uint8

const (
	FromNode Origin = iota
	FromOutside
)

// Switch sends packets: a new connection to a frontend, "198.19.77.10:20770" or, as a node
// port, ":20770". It returns one of the words Passed, SeesClient and SeesSource.
type Switch interface {
	Send(from Origin, frontend string) string
}

// What becomes of a packet.
const (
	Passed     = "no load balancer takes it"
	SeesClient = "an endpoint sees the client"
	SeesSource = "an endpoint sees another address"
)

// About describes the machine that runs the HNS.
type About struct {
	Build int // of Windows, such as 20348
	HNS   hns.Version
}

// Experiment is one question to an HNS, and the answer on which Tandem and the emulator
// rely.
type Experiment struct {
	ID     string
	Asks   string // what is done, in a line
	Source string // of the expected answer, or Assumed
	Needs  Need

	expect func(About) string
	run    func(*lab) string
}

// Assumed is the source of behaviour without a public record.
const Assumed = "assumed"

// Need is what an experiment needs besides HNS, as text for users.
type Need string

const (
	NeedsService  Need = "a restart of the service of HNS, which interrupts all containers (--restart-hns)"
	NeedsListener Need = "a process that listens"
	NeedsSwitch   Need = "endpoints that answer, and a client on another machine"
)

// Expected returns the answer expected of a machine; empty if the question does not apply to
// its version.
func (e Experiment) Expected(a About) string { return e.expect(a) }
