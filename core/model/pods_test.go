// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// Names come back as they were, whatever they share, and what is no name does not; those of a ReplicaSet take some bytes each.
func TestPodNames(t *testing.T) {
	for _, names := range [][]string{
		{"web-7d4b9c6f58-x2x9z", "web-7d4b9c6f58-abcde", "web-7d4b9c6f58-x2x9y"},
		{"web-0"},
		{"web", "web-0", "web"},
		{"a", "b"},
		{"", "web-0", "", "web-1", ""},
		{"", ""},
		{},
		{"Web", "a/b", "a b", "\x1b[31m", strings.Repeat("x", 254), "ok.example"},
	} {
		want := slices.Clone(names)
		s := model.Slice{Pods: model.PackPods(names)}
		for i := range want {
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(i)})})
			if strings.ContainsAny(want[i], "WX/ \x1b") || len(want[i]) > 253 {
				want[i] = ""
			}
		}
		got := model.PodsOf([]*model.Slice{&s})
		for i, e := range s.Endpoints {
			if got[e.Addr] != want[i] {
				t.Errorf("%q: %q of %d, packed %q", names, got[e.Addr], i, s.Pods)
			}
		}
	}
	var names []string
	for i := range 5 {
		names = append(names, fmt.Sprintf("checkout-service-7d4b9c6f58-x2x%02d", i))
	}
	if packed := model.PackPods(names); len(packed)+16 > 5*15 { // with the header of the text
		t.Errorf("%d bytes for 5 endpoints", len(packed)+16)
	}
	short := model.Slice{Pods: "web-/0", Endpoints: make([]model.SliceEndpoint, 3)} // as a file may have it
	if got := model.PodsOf([]*model.Slice{&short, {Pods: "x", Endpoints: make([]model.SliceEndpoint, 1)}}); len(got) != 1 {
		t.Error(got)
	}
}
