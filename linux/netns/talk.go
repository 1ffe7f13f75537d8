// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"strings"
)

// Outcome is the result of a connection attempt.
type Outcome uint8

const (
	Answered Outcome = iota
	Refused          // at once, by a reset, an ICMP message or a closed connection
	TimedOut         // no answer
)

// String returns a short name for people.
func (o Outcome) String() string { return [...]string{"answered", "refused", "timed out"}[o] }

// Answer is what a client receives.
type Answer struct {
	Outcome Outcome
	Server  netip.AddrPort // the server's address, from its answer
	Client  netip.AddrPort // the client as the server sees it
}

// question is a client's request; a server answers each with a line.
const question = "who?\n"

func introduce(server, client netip.AddrPort) string {
	return fmt.Sprintf("%s %s\n", server, client)
}

func understand(line string) (a Answer, err error) {
	server, client, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	if !ok {
		return a, fmt.Errorf("no server of this network answers %q", line)
	}
	if a.Server, err = netip.ParseAddrPort(server); err != nil {
		return a, err
	}
	a.Client, err = netip.ParseAddrPort(client)
	return a, err
}
