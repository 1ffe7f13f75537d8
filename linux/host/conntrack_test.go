// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

func TestConntrack(t *testing.T) {
	day, hour, zero := 24*time.Hour, time.Hour, time.Duration(0)
	standard := config.Conntrack{MaxPerCore: 32768, Min: 131072, TCPEstablished: &day, TCPCloseWait: &hour}
	show := func(all []Setting) string {
		var words []string
		for _, s := range all {
			name := s.Path[strings.LastIndex(s.Path, "/")+1:]
			sign := "="
			if s.AtLeast {
				sign = ">="
			}
			words = append(words, fmt.Sprint(strings.TrimPrefix(name, "nf_conntrack_"), sign, s.Want))
		}
		return strings.Join(words, " ")
	}
	const times = " tcp_timeout_established=86400 tcp_timeout_close_wait=3600"
	for _, c := range []struct {
		name string
		config.Conntrack
		cpus int
		want string
	}{
		{"kube-proxy's defaults, 2 CPUs", standard, 2, "max>=131072 hashsize>=32768" + times},
		{"8 CPUs", standard, 8, "max>=262144 hashsize>=65536" + times},
		{"256 CPUs", standard, 256, "max>=1048576 hashsize>=262144" + times},
		{"CPUs unknown", standard, 0, "max>=131072 hashsize>=32768" + times},
		{"a minimum beyond the bound", config.Conntrack{MaxPerCore: 1, Min: 4 << 20}, 4, "max>=4194304 hashsize>=1048576"},
		{"an absurd factor", config.Conntrack{MaxPerCore: 1 << 62}, 4, "max>=1048576 hashsize>=262144"},
		{"no factor: as it is, whatever the minimum", config.Conntrack{Min: 131072}, 8, ""},
		{"zero times: as they are", config.Conntrack{TCPEstablished: &zero, TCPCloseWait: &zero}, 8, ""},
		{"the rest", config.Conntrack{TCPBeLiberal: true, UDP: 10 * time.Second, UDPStream: 1500 * time.Millisecond}, 8, "tcp_be_liberal=1 udp_timeout=10 udp_timeout_stream=2"},
		{"nothing", config.Conntrack{}, 8, ""},
	} {
		if got := show(Conntrack(c.Conntrack, c.cpus)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestCountCPUs(t *testing.T) {
	for list, want := range map[string]int{
		"0": 1, "0-3\n": 4, "0-3,8": 5, "0-1,4-5,9\n": 5, "": 0, "x": 0, "3-1": 0, "0-": 0, "-1": 0, "0,,1": 0, "99999999": 0,
	} {
		if n, err := countCPUs(list); n != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v", list, n, err)
		}
	}
}

func FuzzCountCPUs(f *testing.F) {
	f.Add("0-3,8\n")
	f.Fuzz(func(t *testing.T, list string) {
		if n, err := countCPUs(list); err == nil && (n < 1 || n > 1<<16) || err != nil && n != 0 {
			t.Errorf("%q: %d, %v", list, n, err)
		}
	})
}
