// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// What was programmed with another bit of the mark is known as ours: a restart
// replaces it, and cleanup need not know the bit.
func TestAnotherMarkIsOursToo(t *testing.T) {
	s := newSite(t)
	nothing := s.state()
	port := otherForHost()
	for _, mark := range []uint32{1 << 14, 1 << 20, 1 << 3} {
		s.options.Mark = mark
		s.open()
		s.set(port)
		s.same(testHost(), []*model.Port{port})
		s.close()
	}
	s.options.Mark = 1 << 14
	s.open()
	if err := s.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := s.state(); left != nothing {
		t.Errorf("left:\n%s\nbefore:\n%s", left, nothing)
	}
}

// otherForHost is a Service for which the host has another endpoint than all others.
func otherForHost() *model.Port {
	port := web(first)
	port.Frontends[0].On[model.FromHost] = web(second).Frontends[0].On[model.FromHost]
	return port
}

// A virtual server that was made, and the entry that leads to it was not, as when
// the process was killed in between, does not take the next one with it.
func TestOrphansGoAlone(t *testing.T) {
	s := newSite(t)
	s.open()
	port := otherForHost()
	s.set(port)
	s.close()
	s.run("ipset", "flush", "KUBE-FROM-HOST")
	if out := s.run("ipvsadm", "-Sn"); !strings.Contains(out, "-A -f ") {
		t.Fatalf("no virtual server by mark:\n%s", out)
	}
	s.open()
	s.set(port)
	s.same(testHost(), []*model.Port{port})
}
