// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/tandem-proxy/tandem/core/model"
)

// A journal may hold anything; what it is rewritten as reads the same, and what it is extended by
// ends what has ended.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(header + "node 192.0.2.1\nlb a\nlb b\ngone a\nlb cut"))
	f.Add([]byte(header + "try 6 10.96.0.10:80\ntry 17 [fd00::1]:53\ndone 6 10.96.0.10:80\ntry 300 1.2.3.4:5\ntry 6"))
	f.Add([]byte(header + "echo {\"ID\":\"a\"} {\"ID\":\"a\",\"SourceVIP\":\"192.0.2.1\"}\nlb a\n"))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		j := newJournal()
		if j.parse(text) != nil {
			return
		}
		again := newJournal()
		if err := again.parse(j.text()); err != nil {
			t.Fatal(err)
		}
		if string(again.text()) != string(j.text()) {
			t.Fatalf("%q became %q", j.text(), again.text())
		}
		if !strings.HasPrefix(string(text), header) {
			return
		}
		clear(j.tries)
		extended := newJournal()
		if err := extended.parse(append(text, j.extension()...)); err != nil || len(extended.tries) > 0 {
			t.Fatalf("%q extended by %q: %v, %v", text, j.extension(), err, extended.tries)
		}
	})
}

// Whatever load balancers HNS holds, reading them ends, and one that was read
// and rendered is the one that was read.
func FuzzReadBalancer(f *testing.F) {
	f.Add([]byte(`{"ID":"x","HostComputeEndpoints":["a"],"FrontendVIPs":["10.0.0.1"],"PortMappings":[{"Protocol":6,"InternalPort":1,"ExternalPort":2}],"Flags":1}`))
	f.Add([]byte(`{"FrontendVIPs":["::1"],"PortMappings":[{"Protocol":262,"ExternalPort":2,"Flags":18}],"Flags":2}`))
	f.Add([]byte(`{"FrontendVIPs":["nonsense",""],"PortMappings":[{},{}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var lb LoadBalancer
		if json.Unmarshal(text, &lb) != nil {
			return
		}
		table := newInventory(newJournal(), Settings{})
		table.put(Endpoint{ID: "a", IpConfigurations: []IpConfig{{IpAddress: "10.0.0.9"}}})
		keys, single := keysOf(lb)
		if !single {
			return
		}
		v := table.readBalancer(keys[0], lb)
		if v.Drift == "" && differs(lb, facts{}.balancer(keys[0], v, lb.HostComputeEndpoints)) != "" {
			t.Errorf("%+v is not what was read of it: %+v", lb, v.Balancer)
		}
	})
}

// Whatever endpoints HNS holds, each is found by its addresses until it goes, and
// what is rendered for an endpoint of ours is read back as right.
func FuzzReadEndpoints(f *testing.F) {
	f.Add([]byte(`[{"ID":"a","Name":"pod","IpConfigurations":[{"IpAddress":"10.0.0.9"},{"IpAddress":"10.0.0.9"}]}]`))
	f.Add([]byte(`[{"ID":"a","Name":"` + remotePrefix + `10.0.0.9","Flags":1,"IpConfigurations":[{"IpAddress":"10.0.0.9"}],"MacAddress":"02:11:0A:00:00:09"}]`))
	f.Add([]byte(`[{"ID":"a","Name":"` + vipPrefix + `::1","Flags":1,"IpConfigurations":[{"IpAddress":"::1"}],"Policies":[{"Type":"` + string(PolicyProvider) + `","Settings":{"ProviderAddress":"x"}}]}]`))
	f.Add([]byte(`[{"ID":"","IpConfigurations":[{"IpAddress":"::ffff:10.0.0.9"}]},{"ID":"root","Name":"root"},{"ID":"root"}]`))
	nets := []facts{{}, {network: network{overlay: true}, node: [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}}
	f.Fuzz(func(t *testing.T, text []byte) {
		var all []Endpoint
		if json.Unmarshal(text, &all) != nil {
			return
		}
		table := newInventory(newJournal(), Settings{Root: "root"})
		for _, e := range all {
			table.put(e)
		}
		for id, e := range table.endpoints {
			for _, a := range addresses(e) {
				local := e.Flags&FlagRemote == 0
				if _, ok := table.find(Target{Addr: a, Local: local}); local && !ok && !a.IsUnspecified() {
					t.Errorf("%+v is not found at %s", e, a)
				}
			}
			k, own := ownedKey(e)
			if _, there := table.own(k); !own {
				continue
			} else if !there {
				t.Errorf("%+v of ours is not found as %s", e, k)
			}
			for _, f := range nets {
				if k.Kind == KindVIP && !f.network.overlay {
					continue // such endpoints are for overlays
				}
				want := f.endpoint(k, f.endpointValue(k))
				table.facts = f
				if key, ok := ownedKey(want); !ok || key != k || table.readEndpoint(k, want).Drift != "" {
					t.Errorf("%+v of %s is read as %+v of %s", want, id, table.readEndpoint(k, want), key)
				}
			}
		}
		for _, e := range all {
			table.drop(e.ID)
		}
		if len(table.endpoints) > 0 || len(table.byAddr) > 0 || table.root != "" {
			t.Errorf("left behind: %v, %v, %q", table.endpoints, table.byAddr, table.root)
		}
	})
}

func FuzzSourceVIP(f *testing.F) {
	f.Add([]byte(`{"ip4":{"ip":"10.244.1.9/24"}}`))
	f.Add([]byte(`{"ips":[{"address":"10.244.1.9/24"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if a, err := parseSourceVIP(text); err == nil && !a.Is4() {
			t.Errorf("%s", a)
		}
	})
}

// PowerShell 5 writes UTF-16 with a byte order mark, and UTF-8 with one when told
// to; others write plain UTF-8.
func TestSourceVIPOfFlannel(t *testing.T) {
	text := `{"cniVersion":"0.2.0","ip4":{"ip":"10.244.1.9/24"}}` + "\r\n"
	wide, big := []byte{0xff, 0xfe}, []byte{0xfe, 0xff}
	for _, u := range utf16.Encode([]rune(text)) {
		wide, big = binary.LittleEndian.AppendUint16(wide, u), binary.BigEndian.AppendUint16(big, u)
	}
	for name, written := range map[string][]byte{
		"UTF-8": []byte(text), "UTF-8 with a mark": []byte("\ufeff" + text), "UTF-16LE": wide, "UTF-16BE": big,
	} {
		file := filepath.Join(t.TempDir(), "sourceVip.json")
		if err := os.WriteFile(file, written, 0o600); err != nil {
			t.Fatal(err)
		}
		if a, chosen := (Settings{SourceVIPFile: file}).sourceVIP(nil); chosen || a != netip.MustParseAddr("10.244.1.9") {
			t.Errorf("%s: got %s", name, a)
		}
	}
}

func TestMAC(t *testing.T) {
	for a, want := range map[string]string{"10.244.2.3": "02-11-0a-f4-02-03", "fd00::1:203": "02-11-03-02-01-00"} {
		if got := mac(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %s, want %s", a, got, want)
		}
	}
}

func TestInterfaceMAC(t *testing.T) {
	if _, err := interfaceMAC(netip.MustParseAddr("192.0.2.123")); err == nil {
		t.Error("an interface has an address of documentation")
	}
	if got, err := interfaceMAC(netip.MustParseAddr("127.0.0.1")); err != nil || got != "" {
		t.Errorf("loopback: %q, %v; want none", got, err)
	}
}

// What is gone is forgotten at once when we deleted it, and otherwise at the
// second look.
func TestJournalForgetsSlowly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "journal")
	j, err := openJournal(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"stays", "deleted", "vanished", "new"} {
		j.add(id)
	}
	j.gone("deleted")
	j.setNode(model.IPv4, netip.MustParseAddr("192.0.2.1"))
	before := map[string]bool{"stays": true, "deleted": true, "vanished": true}
	for range 2 {
		if err := j.prune(before, map[string]bool{"stays": true}); err != nil {
			t.Fatal(err)
		}
		if got := j.owns("vanished"); got != (len(j.all()) == 3) {
			t.Errorf("owns what vanished: %t of %d", got, len(j.all()))
		}
	}
	j.close()
	again, err := openJournal(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.close()
	if !again.owns("stays") || !again.owns("new") || len(again.all()) != 2 || again.node(model.IPv4) != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("read back: %q", again.text())
	}
}

// A file of any size costs little: no more is read of it than such a file has.
func TestALargeSourceVIPFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sourceVip.json")
	text := strings.Repeat(" ", 64<<10) + `{"ip4": {"ip": "10.244.1.9/24"}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if a, err := readSourceVIP(file); err == nil {
		t.Errorf("%s was read from after 64 KiB", a)
	}
}
