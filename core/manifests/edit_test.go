// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// scribble returns a document of some kind for a name.
func scribble(random *rand.Rand, name string) string {
	comment := strings.Repeat("# moved\n", random.IntN(2)*random.IntN(3))
	switch random.IntN(24) {
	case 0:
		return comment + "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\nspec: {clusterIP: None, ports: [{port: 80}]}\n" // has no use
	case 1:
		return comment + "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: " + name + "}\n"
	case 2:
		return comment + "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\nspec: {clusterIP: wrong, ports: [{port: 80}]}\n"
	case 3:
		return comment + "kind: [\n"
	}
	return comment + fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: 10.96.0.%d, ports: [{port: 80}]}\n", name, random.IntN(200))
}

// What is delivered after any edits is what a folder has that is read for the first time, in the order and
// at the places of that, whether it was changed in place or put together again.
func TestEditsAreDelivered(t *testing.T) {
	inPlace, merged := 0, 0
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 7))
		b := newBench(t)
		sink := newRecord()
		d := newDelivery(sink, b.reader)
		docs := map[string][]string{}
		for turn := range 120 {
			for range 1 + random.IntN(2) {
				file := fmt.Sprintf("%d.yaml", random.IntN(4))
				name := func(i int) string {
					if random.IntN(60) == 0 {
						return "everywhere"
					}
					return fmt.Sprintf("s%s%d", file[:1], i)
				}
				all := docs[file]
				switch {
				case len(all) == 0 || random.IntN(15) == 0:
					all = append(all, scribble(random, name(len(all)+random.IntN(50))))
				case random.IntN(15) == 0:
					i := random.IntN(len(all))
					all = slices.Delete(all, i, i+1)
				default:
					i := random.IntN(len(all))
					all[i] = scribble(random, fmt.Sprintf("s%s%d", file[:1], i))
				}
				if docs[file] = all; random.IntN(40) == 0 {
					all = nil
				}
				b.put(file, strings.Join(all, "---\n"))
			}
			last := d.delivered
			if err := d.scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			switch {
			case d.delivered == last:
			case len(last.objects) > 0 && len(d.delivered.objects) > 0 && &last.objects[0] == &d.delivered.objects[0]:
				inPlace++
			default:
				merged++
			}
			if held := slices.ContainsFunc(d.delivered.objects, func(p placed) bool { return b.reader.files[p.file].held != nil }); held || d.delivered.doubtful || d.unsettled {
				continue // what is kept of before is not in the folder
			}
			fresh := newRecord()
			first := newDelivery(fresh, newReader(originOf(b.dir), "", config.PortRange{}))
			if err := first.scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			where := func(f *folder) (all []string) {
				for _, p := range f.objects {
					all = append(all, p.key.String()+" "+p.whereNow())
				}
				return all
			}
			equal(t, fmt.Sprintf("seed %d, turn %d: objects", seed, turn), where(d.delivered), where(first.delivered))
			if !reflect.DeepEqual(d.delivered.problems, first.delivered.problems) {
				t.Fatalf("seed %d, turn %d: %v, want %v", seed, turn, d.delivered.problems, first.delivered.problems)
			}
			if len(sink.services) != len(fresh.services) {
				t.Fatalf("seed %d, turn %d: %d Services, want %d", seed, turn, len(sink.services), len(fresh.services))
			}
			for name, want := range fresh.services {
				if got := sink.services[name]; got == nil || !model.Same(got, want) {
					t.Fatalf("seed %d, turn %d: %+v, want %+v", seed, turn, got, want)
				}
			}
		}
	}
	t.Logf("%d in place, %d put together", inPlace, merged)
	if inPlace < 100 || merged < 100 {
		t.Error("too few to show anything")
	}
}

// What an edit costs follows from its file, and not from the folder.
func TestWhatAnEditCosts(t *testing.T) {
	least := func(others int) uint64 {
		b := newBench(t)
		b.clock = time.Hour // no file was written just before it is read
		b.put("many.yaml", manifests(others))
		d := newDelivery(newRecord(), b.reader)
		bytes := ^uint64(0)
		for turn := range 20 {
			b.put("one.yaml", manifest(200_000, fmt.Sprintf("10.244.3.%d", turn)))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := d.scan(context.Background()); err != nil || len(d.delivered.objects) != 2*others+2 {
				t.Fatal(err, len(d.delivered.objects))
			}
			runtime.ReadMemStats(&after)
			bytes = min(bytes, after.TotalAlloc-before.TotalAlloc)
		}
		return bytes
	}
	few, more := least(10), least(2000)
	t.Logf("%d bytes beside 20 objects, %d beside 4,000", few, more)
	if more > few+few/4 {
		t.Errorf("an edit takes %d bytes beside 20 objects, and %d beside 4,000", few, more)
	}
}

// givenUp is a context that ends once a file has been read again.
type givenUp struct {
	context.Context
	file *file
	read time.Time // before
}

func (c givenUp) Err() error {
	if c.file.read.Equal(c.read) {
		return nil
	}
	return context.Canceled
}

// What a scan that is given up has read already is not lost, nor that a file is gone: the next one has it.
func TestAScanThatIsGivenUp(t *testing.T) {
	b := newBench(t)
	b.clock = time.Hour // no file was written just before it is read
	doc := func(name string, ip int) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: 10.96.0.%d, ports: [{port: 80}]}\n", name, ip)
	}
	for i, name := range []string{"a", "b", "c"} {
		b.put(name+".yaml", doc(name, i))
	}
	sink := newRecord()
	d := newDelivery(sink, b.reader)
	if err := d.scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.put("a.yaml", doc("a", 10))
	b.remove("c.yaml")
	again := b.reader.files["a.yaml"]
	if err := d.scan(givenUp{t.Context(), again, again.read}); !errors.Is(err, context.Canceled) {
		t.Fatalf("not given up: %v", err)
	}
	b.put("b.yaml", doc("b", 11))
	if err := d.scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name, s := range sink.services {
		got[name.Name] = s.ClusterIPs[0].String()
	}
	if want := map[string]string{"a": "10.96.0.10", "b": "10.96.0.11"}; !maps.Equal(got, want) {
		t.Errorf("Services %v, want %v", got, want)
	}
}

// A file that seemed to be rewritten, and is as it was again, is not waited for any more.
func TestAFileThatIsAsItWas(t *testing.T) {
	b := newBench(t)
	b.clock = time.Hour // no file was written just before it is read
	b.put("a.yaml", manifests(2))
	before := b.expect("at first", []string{"web-0", "web-0-x", "web-1", "web-1-x"})
	path := filepath.Join(b.dir, "a.yaml")
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	if f := b.expect("while it is shorter", []string{"web-0", "web-0-x", "web-1", "web-1-x"}); !f.unsettled {
		t.Error("a file that is being rewritten is not waited for")
	}
	written := b.reader.files["a.yaml"].info.ModTime()
	if err := errors.Join(os.WriteFile(path, []byte(manifests(2)), 0o600), os.Chtimes(path, written, written)); err != nil {
		t.Fatal(err)
	}
	if f := b.expect("as it was", []string{"web-0", "web-0-x", "web-1", "web-1-x"}); f.unsettled || len(f.objects) != len(before.objects) {
		t.Error("a file that is as it was is waited for")
	}
}
