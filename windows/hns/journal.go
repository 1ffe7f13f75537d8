// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tandem-proxy/tandem/core/model"
)

// journal keeps, across restarts, the ids of the load balancers that Tandem owns: they have
// no names in HNS. It is a text file, one fact a line, that is appended to and from time to
// time replaced as a whole:
//
//	tandem-hns 1
//	node 192.0.2.1
//	lb 3f2c...
//	gone 3f2c...
//	echo {"ID":"3f2c...",...} {"ID":"3f2c...",...}
//	try 6 10.96.0.10:80
//	done 6 10.96.0.10:80
//
// A load balancer of a frontend (protocol number, address and port) is created between try and
// done. If the process ends in between, or the answer is lost, HNS may have one of unknown id:
// whatever load balancer has that frontend at the next reading is owned. A done without a frontend ends all
// attempts. Lines are not synced to the disk: written data outlives the process.
//
// An echo is a load balancer as requested and as HNS returned it, where these
// differ; an echo with two equal parts cancels an earlier one of the same load balancer.
// A deleted id is kept, as gone, until a reading of HNS lacks it: deletions are known to
// report success and do nothing (Windows-Containers#631). A line
// that is cut off is ignored. It is safe for concurrent use.
type journal struct {
	mu     sync.Mutex
	path   string                                  // empty for none
	folder func(dir string, files ...string) error // creates the folder
	file   *os.File
	ids    map[string]bool // true: deleted, or missing in the last reading
	echoes map[string]echo // by id
	tries  map[Key]try     // frontends for which HNS may have created a load balancer of unknown id
	doubts int             // the number of the last doubt
	grown  int             // bytes appended since the file was replaced or extended
	stuck  bool            // the last replacement of the file failed, and was reported
	nodes  [2]netip.Addr
}

// try is a creation that may have made a load balancer.
type try struct {
	doubt   int  // its number; 0 while the call runs
	refused bool // HNS returned an error: only this process checks what it made; the file has a done
}

// echo is a load balancer as requested, and as HNS returned it.
type echo struct{ asked, got LoadBalancer }

// maxGrown is how many bytes are appended before the file is replaced. One that cannot be
// replaced may exceed its contents by maxExtended bytes.
const (
	maxGrown    = 1 << 20
	maxExtended = 16 * maxGrown
)

// maxJournal bounds the file that is read, in bytes: that of 100,000 load balancers, each with an echo.
const maxJournal = 128 << 20

const header = "tandem-hns 1\n"

// headerError reports why a text that does not begin with header is rejected. If a journal
// of another format were taken for empty, owned load balancers would become foreign.
// Within a format words may be added: unknown ones are ignored.
func headerError(text []byte) error {
	first, _, _ := strings.Cut(string(text[:min(len(text), 64)]), "\n")
	var version int
	if n, err := fmt.Sscanf(first, "tandem-hns %d", &version); n != 1 || err != nil {
		return fmt.Errorf("not a journal: it does not begin with %q", strings.TrimSpace(header))
	}
	return fmt.Errorf("written by another version of Tandem (format %d, this one reads format 1): run that version's \"tandem cleanup\", then delete the file", version)
}

// replacement is the suffix of the file that is to replace the journal.
const replacement = ".new"

// openJournal reads a journal, or starts one. An empty path keeps it in memory.
// It first calls folder (Settings.Folder), which deletes untrusted files. The journal itself is not
// written: on a full disk load balancers are programmed all the same.
func openJournal(path string, folder func(dir string, files ...string) error) (*journal, error) {
	if folder == nil {
		folder = func(dir string, _ ...string) error { return os.MkdirAll(dir, 0o700) }
	}
	if path != "" {
		if err := folder(filepath.Dir(path), path, path+replacement); err != nil {
			return nil, fmt.Errorf("journal of load balancers: %w", err)
		}
	}
	j, err := readJournal(path)
	if err != nil {
		return nil, err
	}
	j.path, j.folder = path, folder
	return j, nil
}

func newJournal() *journal {
	return &journal{ids: map[string]bool{}, echoes: map[string]echo{}, tries: map[Key]try{}}
}

// readJournal reads a journal that may be another process's. Its changes stay in
// memory.
func readJournal(path string) (*journal, error) {
	j := newJournal()
	if path == "" {
		return j, nil
	}
	var text []byte
	info, err := os.Stat(path)
	switch {
	case err == nil && info.Size() > maxJournal:
		err = fmt.Errorf("%s has %d bytes: no journal is larger than %d", path, info.Size(), maxJournal)
	case err == nil:
		text, err = os.ReadFile(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("journal of load balancers: %w", err)
	}
	if err := j.parse(text); err != nil {
		return nil, fmt.Errorf("journal of load balancers: %s: %w", path, err)
	}
	return j, nil
}

func (j *journal) parse(text []byte) error {
	if len(bytes.Trim(text, "\x00")) == 0 { // what NTFS leaves of a file when the power fails
		return nil
	}
	body, ok := bytes.CutPrefix(text, []byte(header))
	if !ok {
		return headerError(text)
	}
	for line := range strings.Lines(string(body)) {
		word, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch a, err := netip.ParseAddr(value); {
		case !strings.HasSuffix(line, "\n"): // the write was cut off
		case word == "node" && err == nil:
			j.nodes[model.FamilyOf(a)] = a
		case word == "lb" && value != "":
			j.ids[value] = false
		case word == "gone" && value != "":
			j.ids[value] = true
		case word == "echo":
			j.parseEcho(value)
		case word == "done" && value == "":
			clear(j.tries)
		case word == "try", word == "done":
			j.parseTry(word == "done", value)
		}
	}
	return nil
}

// parseTry takes over the frontend of a try or done line. Invalid lines are ignored.
func (j *journal) parseTry(done bool, line string) {
	number, at, _ := strings.Cut(line, " ")
	proto, err := strconv.ParseUint(number, 10, 8)
	a, err2 := netip.ParseAddrPort(at)
	k := Key{KindBalancer, model.Proto(proto), a.Port(), a.Addr()}
	switch {
	case err != nil || err2 != nil:
	case done:
		delete(j.tries, k)
	default:
		j.doubts++
		j.tries[k] = try{doubt: j.doubts}
	}
}

// tryLine is a try or done line.
func tryLine(word string, k Key) string {
	return fmt.Sprintf("%s %d %s\n", word, k.Proto, netip.AddrPortFrom(k.Addr, k.Port))
}

// parseEcho takes over the echo of a line. Invalid lines are ignored.
func (j *journal) parseEcho(line string) {
	var e echo
	lines := json.NewDecoder(strings.NewReader(line))
	if lines.Decode(&e.asked) == nil && lines.Decode(&e.got) == nil && e.got.ID == e.asked.ID {
		j.keepEcho(e)
	}
}

// String returns the echo as in its line.
func (e echo) String() string {
	asked, _ := json.Marshal(e.asked) // plain structs of strings and numbers
	got, _ := json.Marshal(e.got)
	return string(asked) + " " + string(got)
}

func (j *journal) text() []byte {
	b := []byte(header)
	for _, a := range j.nodes {
		if a.IsValid() {
			b = fmt.Appendf(b, "node %s\n", a)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(j.ids)) {
		b = fmt.Appendf(b, "lb %s\n", id)
		if j.ids[id] {
			b = fmt.Appendf(b, "gone %s\n", id)
		}
		if e, ok := j.echoes[id]; ok {
			b = fmt.Appendf(b, "echo %s\n", e)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(j.tries), Key.compare) {
		if !j.tries[k].refused {
			b = append(b, tryLine("try", k)...)
		}
	}
	return b
}

// rewrite replaces the file, or extends it where that fails, and leaves it open for appending.
// A failed replacement is an error once, until one succeeds again.
func (j *journal) rewrite() error {
	if j.path == "" {
		return nil
	}
	err := j.replace()
	if err == nil {
		j.stuck = false
		return nil
	}
	if err2 := j.extend(); err2 != nil {
		return errors.Join(err, err2)
	}
	if j.stuck {
		return nil
	}
	j.stuck = true
	return fmt.Errorf("replacing the file failed; appending to it instead: %w", err)
}

// extension returns lines that, appended to an earlier state of the file, make it read as the
// journal: the first ends a line that was cut off, and ended attempts and echoes are
// cancelled. Ids that were forgotten since remain: the next reading of HNS forgets them again.
func (j *journal) extension() []byte {
	b := append([]byte("\ndone\n"), j.text()[len(header):]...)
	for id := range j.ids {
		if _, ok := j.echoes[id]; !ok {
			b = fmt.Appendf(b, "echo %s\n", echo{LoadBalancer{ID: id}, LoadBalancer{ID: id}})
		}
	}
	return b
}

// extend appends the whole journal to the existing file: a disk without room for a second
// file may have room for that.
func (j *journal) extend() error {
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	begin := make([]byte, len(header))
	if _, err = io.ReadFull(f, begin); err == nil && string(begin) != header {
		err = headerError(begin)
	}
	var size int64
	if err == nil {
		size, err = f.Seek(0, io.SeekEnd)
	}
	text := j.extension()
	if err == nil && size > int64(len(text)+maxExtended) {
		err = fmt.Errorf("%s has %d bytes: not appending more", j.path, size)
	}
	if err == nil {
		_, err = f.Write(text)
	}
	if err = errors.Join(err, f.Sync()); err != nil {
		return errors.Join(err, f.Close())
	}
	j.file, j.grown = f, 0
	return nil
}

// replace writes a new file and renames it to the journal's name.
func (j *journal) replace() error {
	if j.file != nil { // Windows replaces no file that is open
		j.file.Close()
		j.file = nil
	}
	tmp := j.path + replacement
	if err := j.folder(filepath.Dir(j.path), tmp); err != nil {
		return err
	}
	if err := writeSynced(tmp, j.text()); err != nil {
		return err
	}
	if err := os.Rename(tmp, j.path); err != nil {
		return err
	}
	f, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND, 0)
	j.file, j.grown = f, 0
	return err
}

// writeSynced writes a file and waits until it is on the disk: one that is renamed
// before may be empty after a loss of power. An incomplete file is removed: it may occupy
// the disk's last room, which the journal needs.
func writeSynced(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func (j *journal) append(lines string) error {
	switch {
	case j.path == "":
		return nil
	case j.file == nil, j.grown > maxGrown: // nil: the first write, or the last one failed
		return j.rewrite()
	}
	n, err := j.file.WriteString(lines)
	if j.grown += n; err != nil { // it may have written half a line
		j.file.Close()
		j.file = nil
	}
	return err
}

// owns reports whether a load balancer is owned, also one that was deleted and may still exist.
func (j *journal) owns(id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, ok := j.ids[id]
	return ok
}

// add notes that a load balancer is owned.
func (j *journal) add(id string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if gone, ok := j.ids[id]; ok && !gone {
		return nil
	}
	j.ids[id] = false
	return j.append("lb " + id + "\n")
}

// attempt notes that a frontend's load balancer is about to be created.
func (j *journal) attempt(k Key) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tries[k] = try{}
	return j.append(tryLine("try", k))
}

// answered ends the attempt with the id of the load balancer that HNS created; "" for none.
func (j *journal) answered(k Key, id string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.tries, k)
	lines := tryLine("done", k)
	if id != "" {
		j.ids[id] = false
		lines = "lb " + id + "\n" + lines
	}
	return j.append(lines)
}

// doubt notes that the attempt may have created a load balancer of unknown id: there was no
// answer, or (refused) an error.
func (j *journal) doubt(k Key, refused bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.doubts++
	j.tries[k] = try{j.doubts, refused}
	if !refused {
		return nil
	}
	return j.append(tryLine("done", k))
}

// doubtful returns the frontends for which HNS may have created a load balancer of unknown id.
// A reading of HNS that begins afterwards resolves them (own).
func (j *journal) doubtful() map[Key]try {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := maps.Clone(j.tries)
	maps.DeleteFunc(all, func(_ Key, t try) bool { return t.doubt == 0 })
	return all
}

// own makes the load balancers of doubtful frontends owned, where all holds all of HNS, and ends
// these doubts.
func (j *journal) own(doubts map[Key]try, all []LoadBalancer) error {
	if len(doubts) == 0 {
		return nil
	}
	var failed error
	for _, lb := range all {
		if keys, single := keysOf(lb); single {
			if _, doubtful := doubts[keys[0]]; doubtful {
				failed = errors.Join(failed, j.add(lb.ID))
			}
		}
	}
	return errors.Join(failed, j.settle(doubts))
}

// settle ends doubts that are still the same; newer ones about their frontends stay.
func (j *journal) settle(doubts map[Key]try) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := ""
	for k, t := range doubts {
		if now, ok := j.tries[k]; ok && now == t {
			delete(j.tries, k)
			if !t.refused {
				lines += tryLine("done", k)
			}
		}
	}
	if lines == "" {
		return nil
	}
	return j.append(lines)
}

// gone notes that a load balancer was deleted.
func (j *journal) gone(id string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if gone, ok := j.ids[id]; !ok || gone {
		return nil
	}
	j.ids[id] = true
	return j.append("gone " + id + "\n")
}

// setEcho notes a load balancer as requested and as HNS returned it.
func (j *journal) setEcho(asked, got LoadBalancer) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, had := j.echoes[got.ID]; !j.keepEcho(echo{asked, got}) && !had {
		return nil
	}
	return j.append("echo " + echo{asked, got}.String() + "\n")
}

// keepEcho replaces the echo of a load balancer, or deletes it where the two parts are equal.
func (j *journal) keepEcho(e echo) (differ bool) {
	if differ = differs(e.got, e.asked) != ""; differ {
		j.echoes[e.got.ID] = e
	} else {
		delete(j.echoes, e.got.ID)
	}
	return differ
}

// requested returns a load balancer that was read: as requested, if it is still as HNS
// returned it then, else unchanged.
func (j *journal) requested(lb LoadBalancer) LoadBalancer {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e, ok := j.echoes[lb.ID]; ok && differs(lb, e.got) == "" {
		e.asked.State = lb.State
		return e.asked
	}
	return lb
}

// node returns this node's address of a family.
func (j *journal) node(f model.Family) netip.Addr {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.nodes[f]
}

// setNode notes this node's address of a family.
func (j *journal) setNode(f model.Family, a netip.Addr) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.nodes[f] == a {
		return nil
	}
	j.nodes[f] = a
	return j.rewrite()
}

// prune forgets load balancers that a reading lacks: deleted ones at once, others
// when a second reading lacks them, too, since HNS that has just started may not show
// all. Only ids that were in the journal before the reading are considered.
func (j *journal) prune(before, seen map[string]bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	changed := false
	for id := range before {
		gone, there := j.ids[id]
		switch {
		case !there:
		case seen[id]:
			changed = changed || gone
			j.ids[id] = false
		case gone:
			changed = true
			delete(j.ids, id)
			delete(j.echoes, id)
		default:
			changed = true
			j.ids[id] = true
		}
	}
	if !changed {
		return nil
	}
	return j.rewrite()
}

// all returns the owned ids, all with the value true.
func (j *journal) all() map[string]bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	ids := make(map[string]bool, len(j.ids))
	for id := range j.ids {
		ids[id] = true
	}
	return ids
}

// close closes the file. Later changes stay in memory: the file may be another process's.
func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.path = ""
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	return err
}
