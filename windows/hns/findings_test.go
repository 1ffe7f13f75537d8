// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// Findings that are kept up to date are those of a table that is looked at as a whole.
func TestFindingsFollowChanges(t *testing.T) {
	table := newInventory(newJournal(), Settings{Root: "root", DSR: true})
	random := rand.New(rand.NewPCG(1, 2))
	loopback := Policy{Type: "OutBoundNAT", Settings: json.RawMessage(`{"Destinations":["10.244.0.1"]}`)}
	for range 20_000 {
		n := random.IntN(20)
		e := Endpoint{ID: fmt.Sprint(n), Name: []string{"pod", "root", remotePrefix + "x"}[n%3], IpConfigurations: []IpConfig{{IpAddress: fmt.Sprintf("10.244.0.%d", n%4)}}}
		if random.IntN(2) == 0 {
			e.State = EndpointDegraded
		}
		if random.IntN(2) == 0 {
			e.Flags = FlagRemote
		}
		if random.IntN(2) == 0 {
			e.Policies = []Policy{loopback}
		}
		k := Key{Kind: KindBalancer, Proto: model.TCP, Port: uint16(n), Addr: netip.MustParseAddr("10.96.0.1")}
		switch random.IntN(5) {
		case 0:
			table.drop(e.ID)
		case 1:
			table.merge([]Endpoint{e}, nil)
		case 2:
			table.set(k, LoadBalancer{})
		case 3:
			lb := LoadBalancer{ID: fmt.Sprint("lb", n)}
			if random.IntN(2) == 0 {
				lb.State = StateDegraded
			}
			table.tenants[k] = fmt.Sprint(n % 3)
			table.set(k, lb)
		default:
			table.put(e)
		}
		kept := table.now
		table.now = findings{}
		for _, e := range table.endpoints {
			table.count(e, 1)
		}
		table.countBalancers()
		if table.now != kept {
			t.Fatalf("kept %+v, want %+v", kept, table.now)
		}
	}
}

// A Commit while there are findings costs the same however many pods there are.
func TestACommitBesideFindingsLooksAtNothingElse(t *testing.T) {
	cost := func(pods int) float64 {
		d := newDriver(nil, Version{Major: 15, Minor: 4}, Settings{DSR: true}, newJournal())
		for n := range pods {
			d.known.put(Endpoint{
				ID: fmt.Sprint(n), Name: "pod", State: EndpointDegraded, IpConfigurations: []IpConfig{{IpAddress: "10.244.0.1"}},
				Policies: []Policy{{Type: "OutBoundNAT", Settings: json.RawMessage(`{"Destinations":["10.244.0.9"]}`)}},
			})
		}
		d.known.found = d.known.now
		op := []ledger.Op[Key, Value]{{Key: nodeAddress(model.IPv6)}}
		return testing.AllocsPerRun(10, func() {
			if err := d.Commit(t.Context(), op)[0]; err != nil || len(d.Problems()) != 2 {
				t.Fatal(err, d.Problems())
			}
		})
	}
	if few, many := cost(10), cost(2000); many > few+2 { // the runtime's own, now and then
		t.Errorf("a commit allocates %.0f times beside 10 pods, %.0f times beside 2,000", few, many)
	}
}

// A load balancer that is returned as requested again is one line of the journal, and no new
// file; the next process knows it, too.
func TestAnEchoEndsByALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, err := openJournal(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 100 {
		if err := j.add(fmt.Sprint("lb", n)); err != nil {
			t.Fatal(err)
		}
	}
	asked, got := LoadBalancer{ID: "lb1", SourceVIP: "192.0.2.1"}, LoadBalancer{ID: "lb1"}
	if err := j.setEcho(asked, got); err != nil || len(j.echoes) != 1 {
		t.Fatal(err, j.echoes)
	}
	file, before := j.file, size(t, path)
	if err := j.setEcho(asked, asked); err != nil || len(j.echoes) != 0 {
		t.Fatal(err, j.echoes)
	}
	if grown := size(t, path) - before; j.file != file || grown <= 0 || grown > 1000 {
		t.Errorf("the file has grown by %d, and is another one: %t", grown, j.file != file)
	}
	if err := j.setEcho(asked, asked); err != nil || size(t, path)-before > 1000 {
		t.Error("one that never differed was written", err)
	}
	next, err := readJournal(path)
	if err != nil || len(next.echoes) != 0 || len(next.ids) != 100 {
		t.Errorf("%v, %v, %d ids", err, next.echoes, len(next.ids))
	}
	if err := j.close(); err != nil {
		t.Error(err)
	}
	if text, _ := os.ReadFile(path); !strings.HasPrefix(string(text), header) {
		t.Error("the header is gone")
	}
}

// A file that can only be extended says so once until it is replaced again, reads as what is
// so now, though lines of before are in it, and does not grow for ever.
func TestAJournalThatIsOnlyExtended(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, err := openJournal(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	asked, got := LoadBalancer{ID: "lb1", SourceVIP: "192.0.2.1"}, LoadBalancer{ID: "lb1"}
	for _, err := range []error{j.add("lb1"), j.setEcho(asked, got), os.Mkdir(path+replacement, 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := j.file.Close(); err != nil { // the write of the line that ends the echo fails
		t.Fatal(err)
	}
	if err := j.setEcho(asked, asked); err == nil {
		t.Fatal("a closed file was written to")
	}
	if err := j.add("lb2"); err == nil || !strings.Contains(err.Error(), "appending to it instead") {
		t.Errorf("a file that cannot be replaced: %v", err)
	}
	next, err := readJournal(path)
	if err != nil || len(next.echoes) != 0 || !next.owns("lb1") || !next.owns("lb2") {
		t.Errorf("the next process has %v, %v, %v", next.ids, next.echoes, err)
	}
	for n := range 18 { // as when a MiB is appended each time
		j.grown = maxGrown + 1
		if err := os.Truncate(path, int64(n*maxGrown)+size(t, path)%maxGrown); err != nil {
			t.Fatal(err)
		}
		err := j.add(fmt.Sprint("new", n))
		if n < 16 && err != nil {
			t.Errorf("reported again, at %d MiB: %v", n, err)
		}
		if n > 16 && (err == nil || !strings.Contains(err.Error(), "not appending more")) {
			t.Errorf("a file of %d MiB: %v", n, err)
		}
	}
	if err := os.Remove(path + replacement); err != nil {
		t.Fatal(err)
	}
	if err := j.add("last"); err != nil || size(t, path) > 10_000 {
		t.Errorf("replaced again: %d bytes, %v", size(t, path), err)
	}
	if next, err = readJournal(path); err != nil || len(next.ids) != len(j.ids) {
		t.Errorf("%d ids, want %d; %v", len(next.ids), len(j.ids), err)
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// A file that is larger than any journal is not read into memory: it is an error that names it.
func TestAJournalThatIsTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(path, []byte(header), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 128<<20+1); err != nil {
		t.Fatal(err)
	}
	if _, err := readJournal(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("read: %v", err)
	}
}

// The network's own range is read from the new API's words, and a proxy that is opened on it
// knows the pods of its node by it.
func TestTheRangeOfANetwork(t *testing.T) {
	var n Network
	text := `{"ID":"1","Name":"cbr0","Type":"L2Bridge","Policies":[],"Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.244.1.0/24","Routes":[{"NextHop":"10.244.1.1","DestinationPrefix":"0.0.0.0/0"}]},{"IpAddressPrefix":"fd00::/64"}]}]}`
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	o := options(Version{13, 2}, n, &c)
	if want := [2]netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00::/64")}; o.Subnets != want {
		t.Errorf("%v, want %v", o.Subnets, want)
	}
}
