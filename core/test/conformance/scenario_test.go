// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
)

func TestParse(t *testing.T) {
	all, err := Load(os.DirFS("testdata"))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 {
		t.Fatalf("%d scenarios, want 1", len(all))
	}
	s := all[0]
	if s.Name != "basics" || s.Title != "A cluster IP, a node port, affinity, and steps." {
		t.Errorf("name %q, title %q", s.Name, s.Title)
	}
	if len(s.Steps) != 4 {
		t.Fatalf("%d steps, want 4", len(s.Steps))
	}
	if got := slices.Sorted(maps.Keys(s.Steps[0].Files)); !slices.Equal(got, []string{"node-1.yaml", "web-4.yaml", "web.yaml"}) {
		t.Errorf("files of the beginning: %q", got)
	}
	if got := slices.Sorted(maps.Keys(s.Steps[1].Files)); !slices.Equal(got, []string{"node-1.yaml", "web.yaml"}) {
		t.Errorf("files of step 1: %q", got)
	}
	if st := s.Steps[1]; !slices.Equal(st.Removed, []string{"web-4.yaml"}) || st.Changed != nil || st.Title != "step 1: remove web-4.yaml" {
		t.Errorf("step 1: removed %q, changed %q, title %q", st.Removed, st.Changed, st.Title)
	}
	text, _ := os.ReadFile("testdata/basics.txtar")
	for _, st := range s.Steps {
		for _, p := range st.Packets {
			if line := strings.Split(string(text), "\n")[p.Line-1]; !strings.HasPrefix(line, p.From) || !strings.Contains(line, p.To.String()) {
				t.Errorf("row %q says line %d, which is %q", p, p.Line, line)
			}
		}
	}
	if got := s.Steps[0].Packets[1].Expect.String(); got != "10.244.1.2:8080/snat 10.244.2.2:8080" {
		t.Errorf("expectation of the second row: %q", got)
	}
}

func TestMistakesHavePlaces(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"no title", "-- packets --\n", "x:1: the first line must be a comment"},
		{"unknown section", "# t\n-- web.txt --\n", `x:2: "web.txt" is neither a manifest`},
		{"twice", "# t\n-- a.yaml --\n-- b.yaml --\nx\n-- a.yaml --\n", `x:5: "a.yaml" is already in line 2`},
		{"gap", "# t\n-- 2/a.yaml --\n", "x:2: step 2 without step 1"},
		{"rm", "# t\n-- 1/rm --\n\nno.yaml\n", `x:4: rm: no file "no.yaml"`},
		{"arrow", "# t\n-- packets --\n# c\npod tcp 1.2.3.4:5 reject\n", "x:4: want \"from proto to -> expectation\""},
		{"proto", "# t\n-- packets --\npod icmp 1.2.3.4:5 -> reject\n", `x:3: "icmp" is not one of tcp, udp, sctp`},
		{"from", "# t\n-- packets --\npodd tcp 1.2.3.4:5 -> reject\n", `x:3: "podd" is neither an address nor one of`},
		{"to", "# t\n-- packets --\npod tcp 1.2.3.4 -> reject\n", `x:3: "1.2.3.4" is not ADDRESS:PORT`},
		{"families", "# t\n-- packets --\n1.2.3.4 tcp [::1]:5 -> reject\n", "x:3: from 1.2.3.4 to ::1: two IP families"},
		{"more", "# t\n-- packets --\npod tcp 1.2.3.4:5 -> reject now\n", `x:3: "now" after reject`},
		{"nothing", "# t\n-- packets --\npod tcp 1.2.3.4:5 ->\n", "x:3: no expectation"},
		{"only words", "# t\n-- packets --\npod tcp 1.2.3.4:5 -> snat affinity\n", "x:3: no endpoints"},
		{"same, not affinity", "# t\n-- packets --\npod tcp 1.2.3.4:5 -> 1.2.3.4:6 same\n", "x:3: same without affinity"},
		{"double", "# t\n-- packets --\npod tcp 1.2.3.4:5 -> 1.1.1.1:1 1.1.1.1:1/snat\n", "x:3: 1.1.1.1:1 is listed twice"},
		{"host key", "# t\n-- host --\npods: none\nspeed: high\n", `x:4: host: unknown key "speed"`},
		{"host value", "# t\n-- host --\npods: cidr 10.0.0.0\n", `x:3: host: "10.0.0.0" is not a prefix`},
		{"host how", "# t\n-- host --\npods: guess\n", `x:3: host: pods: unknown "guess"`},
		{"late host", "# t\n-- 1/host --\n", `x:2: "host" is neither`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse("x", []byte(test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func TestHostSettings(t *testing.T) {
	parse := func(text string) config.Config {
		s, err := Parse("x", []byte("# t\n-- host --\n"+text))
		if err != nil {
			t.Fatal(err)
		}
		return s.Host
	}
	if c := parse(""); c.DetectLocal != config.DetectClusterCIDR || len(c.ClusterCIDRs) != 2 || c.NodeName != "node-1" {
		t.Errorf("defaults: %+v", c)
	}
	if c := parse("pods: none\n"); len(c.ClusterCIDRs) != 0 {
		t.Errorf("none: %+v", c)
	}
	if c := parse("pods: interface cni0\n"); c.DetectLocal != config.DetectBridgeInterface || c.PodBridge != "cni0" {
		t.Errorf("interface: %+v", c)
	}
	if c := parse("nodeports: 10.0.0.0/8 fd00::/8 # two\nmasquerade-all: true"); len(c.NodePorts.Prefixes) != 2 || !c.MasqueradeAll {
		t.Errorf("node ports: %+v", c)
	}
	if c := parse("nodeports: primary"); !c.NodePorts.Primary {
		t.Errorf("primary: %+v", c)
	}
}

func TestOwnNodeReplacesTheDefault(t *testing.T) {
	const node = "kind: Node\nmetadata:\n  name: node-1\n"
	s, err := Parse("x", []byte("# t\n-- 1/mine.yaml --\n"+node+"-- 2/rm --\nmine.yaml\n-- 2/other.yaml --\nkind: Node\nmetadata: {name: node-10}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{{"node-1.yaml"}, {"mine.yaml"}, {"other.yaml"}}
	for i, st := range s.Steps {
		if got := slices.Sorted(maps.Keys(st.Files)); !slices.Equal(got, want[i]) {
			t.Errorf("step %d: %q, want %q", i, got, want[i])
		}
	}
	for text, want := range map[string]bool{
		node:                          true,
		"kind: Service\n---\n" + node: true,
		`{"kind": "Node", "metadata": {"name": "node-1"}}`: true,
		"kind: Node\nmetadata: {name: node-1}":             true,
		"kind: NodeList\nname: node-1":                     false,
		"kind: Node\nname: node-11":                        false,
	} {
		if definesNode([]byte(text)) != want {
			t.Errorf("definesNode(%q) is not %t", text, want)
		}
	}
}

// A suite without scenarios would pass.
func TestNoScenariosIsAnError(t *testing.T) {
	for _, dir := range []string{t.TempDir(), "no/such/folder"} {
		if all, err := Load(os.DirFS(dir)); err == nil {
			t.Errorf("%s: %d scenarios and no error", dir, len(all))
		}
	}
}
