// SPDX-License-Identifier: Apache-2.0

package virtualserver

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// The table as Linux 6.12 prints it: the title, both families, a persistent client's
// template (no port), and what is none of ours.
const connectionLines = `Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP 0AF4010A 8112 0A60000A 0050 0AF40102 1F90 SYN_RECV         58
UDP 0AF4010A 8113 0A600035 0035 0AF40103 1F90 UDP             298
TCP 0AF4010A 0000 0A60000A 0050 0AF40102 1F90 NONE             58
TCP fd00:0010:0244:0001:0000:0000:0000:000a 8114 fd00:0010:0096:0000:0000:0000:0000:000a 0050 fd00:0010:0244:0001:0000:0000:0000:0002 1F90 ESTABLISHED     898
AH  0AF4010A 8112 0A60000A 0050 0AF40102 1F90 NONE             58
TCP 0AF4010A 8112 0A60000A
TCP zz 8112 0A60000A 0050 0AF40102 1F90 SYN_RECV         58
TCP 0AF4 8112 0A60000A 0050 0AF40102 1F90 SYN_RECV         58
TCP 0AF4010A 18112 0A60000A 0050 0AF40102 1F90 SYN_RECV         58
`

func TestConnections(t *testing.T) {
	at := netip.MustParseAddrPort
	want := []Connection{
		{model.TCP, at("10.244.1.10:33042"), at("10.96.0.10:80"), at("10.244.1.2:8080"), "SYN_RECV"},
		{model.UDP, at("10.244.1.10:33043"), at("10.96.0.53:53"), at("10.244.1.3:8080"), "UDP"},
		{model.TCP, at("[fd00:10:244:1::a]:33044"), at("[fd00:10:96::a]:80"), at("[fd00:10:244:1::2]:8080"), "ESTABLISHED"},
	}
	var got []Connection
	if err := readConnections(t.Context(), strings.NewReader(connectionLines), func(c Connection) { got = append(got, c) }); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v\n%+v, want\n%+v", err, got, want)
	}
}

func FuzzConnection(f *testing.F) {
	for line := range strings.Lines(connectionLines) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if c, ok := parseConnection(line); ok && !(c.Client.IsValid() && c.Dst.IsValid() && c.To.IsValid() && c.Client.Port() != 0) {
			t.Errorf("%q: %+v", line, c)
		}
	})
}
