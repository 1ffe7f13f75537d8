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

// journal remembers beyond the life of a process which load balancers are Tandem's:
// HNS gives them no name. It is a text file, one fact a line, that is
// appended to and at every reading of HNS replaced as a whole:
//
//	tandem-hns 1
//	node 192.0.2.1
//	lb 3f2c...
//	gone 3f2c...
//	echo {"ID":"3f2c...",...} {"ID":"3f2c...",...}
//	try 6 10.96.0.10:80
//	done 6 10.96.0.10:80
//
// HNS is asked for a load balancer of a frontend (protocol, address and port) between try and
// done. Where the process ends in between, HNS may have one of unknown ID: a load balancer
// of that frontend at the next read of HNS is owned, as after a lost answer. A done without a frontend ends all
// attempts. Lines are not synced to the disk: written data outlives the process.
//
// An echo is a load balancer as it was requested, and as HNS returned it when that
// was something else; an echo with two equal parts cancels an earlier one of the same load balancer.
// An id that was deleted is forgotten only when HNS has shown not to have it:
// deletions are known to succeed and do nothing (Windows-Containers#631). A line
// that is cut off is ignored. It is safe for concurrent use.
type journal struct {
	mu     sync.Mutex
	path   string                                  // empty for none
	folder func(dir string, files ...string) error // creates the folder
	file   *os.File
	ids    map[string]bool // true when it was deleted, or was not there
	echoes map[string]echo // of ids
	tries  map[Key]try     // frontends that HNS is or was asked for one for, and may have made one
	doubts int             // how many creations may have done so
	grown  int             // bytes that were appended since the file was replaced or extended
	stuck  bool            // the file could not be replaced the last time, which was reported
	nodes  [2]netip.Addr
}

// try is a creation that may have made a load balancer.
type try struct {
	doubt   int  // its number; 0 while HNS is asked
	refused bool // HNS has said no: this process alone looks whether it made none, and the file has a done
}

// echo is a load balancer that HNS returned otherwise than it was requested.
type echo struct{ asked, got LoadBalancer }

// maxGrown is how much is appended before the file is replaced. One that cannot be replaced
// may be maxExtended larger than what it has to say.
const (
	maxGrown    = 1 << 20
	maxExtended = 16 * maxGrown
)

// maxJournal is how large a file is read: that of 100,000 load balancers, each with an echo.
const maxJournal = 128 << 20

const header = "tandem-hns 1\n"

// headerError reports why a text that does not begin with header is rejected. Taken for
// empty, a journal of another format would make owned load balancers foreign.
// Words may be added within a format: those that a program does not know it ignores.
func headerError(text []byte) error {
	first, _, _ := strings.Cut(string(text[:min(len(text), 64)]), "\n")
	var version int
	if n, err := fmt.Sscanf(first, "tandem-hns %d", &version); n != 1 || err != nil {
		return fmt.Errorf("not a journal: it does not begin with %q", strings.TrimSpace(header))
	}
	return fmt.Errorf("written by another version of Tandem (format %d, this one reads format 1): run that version's \"tandem cleanup\", then delete the file", version)
}

// replacement ends the name of what is to replace the file.
const replacement = ".new"

// openJournal reads a journal, or starts one. An empty path keeps it in memory.
// Its folder is made first, as in Settings: files that this removes are not read. It writes
// nothing: on a full disk load balancers are programmed all the same.
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

// readJournal reads a journal that may be another process's. Changes
// from now on stay in memory.
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

// parseTry takes the frontend that a line has, if it can be read.
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

// tryLine is a line about a frontend.
func tryLine(word string, k Key) string {
	return fmt.Sprintf("%s %d %s\n", word, k.Proto, netip.AddrPortFrom(k.Addr, k.Port))
}

// parseEcho takes the echo that a line has, if it can be read.
func (j *journal) parseEcho(line string) {
	var e echo
	lines := json.NewDecoder(strings.NewReader(line))
	if lines.Decode(&e.asked) == nil && lines.Decode(&e.got) == nil && e.got.ID == e.asked.ID {
		j.keepEcho(e)
	}
}

// String returns the echo as a line has it.
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

// rewrite replaces the file, or where that fails extends it, and leaves it open for appending.
// That it could only be extended is an error once until it is replaced again.
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
	return fmt.Errorf("the file cannot be replaced, and is extended instead: %w", err)
}

// extension is what makes a file that holds anything of before read as the journal is: the
// first line ends one that was cut off, and what has ended since is ended.
func (j *journal) extension() []byte {
	b := append([]byte("\ndone\n"), j.text()[len(header):]...)
	for id := range j.ids {
		if _, ok := j.echoes[id]; !ok {
			b = fmt.Appendf(b, "echo %s\n", echo{LoadBalancer{ID: id}, LoadBalancer{ID: id}})
		}
	}
	return b
}

// extend appends everything to the file that there is: a disk without room for a second one
// may have some for more lines.
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
		err = fmt.Errorf("%s has %d bytes, and is not extended further", j.path, size)
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

// replace writes a new file in the place of the old one.
func (j *journal) replace() error {
	if j.file != nil { // Windows replaces no file that is open
		j.file.Close()
		j.file = nil
	}
	tmp := j.path + replacement
	if err := j.folder(filepath.Dir(j.path), tmp); err != nil {
		return err
	}
	if err := writeDown(tmp, j.text()); err != nil {
		return err
	}
	if err := os.Rename(tmp, j.path); err != nil {
		return err
	}
	f, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND, 0)
	j.file, j.grown = f, 0
	return err
}

// writeDown writes a file and waits until it is on the disk: one that is renamed
// before may be empty after a loss of power. One that is not whole is removed: it may have
// the disk's last room, which the journal needs.
func writeDown(path string, text []byte) error {
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
	case j.file == nil, j.grown > maxGrown: // the first write, the last one failed, or there were many
		return j.rewrite()
	}
	n, err := j.file.WriteString(lines)
	if j.grown += n; err != nil { // it may have written half a line
		j.file.Close()
		j.file = nil
	}
	return err
}

// owns reports whether a load balancer is owned.
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

// attempt notes that HNS is about to be asked for the load balancer of a frontend.
func (j *journal) attempt(k Key) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tries[k] = try{}
	return j.append(tryLine("try", k))
}

// answered notes the id of the one that HNS has made for it; "" for none.
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

// doubt notes that HNS may have made one, though it did not give its id: there was no answer, or
// it refused.
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

// doubtful returns the frontends with a load balancer that may be ours though its id is not
// known. HNS is to be read after that.
func (j *journal) doubtful() map[Key]try {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := maps.Clone(j.tries)
	maps.DeleteFunc(all, func(_ Key, t try) bool { return t.doubt == 0 })
	return all
}

// own enters the load balancers of doubtful frontends, when all were read, and ends those
// doubts.
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

// settle ends the doubts of before HNS was read; later ones about the same frontends stay.
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

// gone notes that an owned one was deleted.
func (j *journal) gone(id string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if gone, ok := j.ids[id]; !ok || gone {
		return nil
	}
	j.ids[id] = true
	return j.append("gone " + id + "\n")
}

// setEcho notes how HNS returned what was requested.
func (j *journal) setEcho(asked, got LoadBalancer) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, had := j.echoes[got.ID]; !j.keepEcho(echo{asked, got}) && !had {
		return nil
	}
	return j.append("echo " + echo{asked, got}.String() + "\n")
}

// keepEcho keeps an echo that differs, the latest of each load balancer. One that does not
// ends the one before.
func (j *journal) keepEcho(e echo) (differ bool) {
	if differ = differs(e.got, e.asked) != ""; differ {
		j.echoes[e.got.ID] = e
	} else {
		delete(j.echoes, e.got.ID)
	}
	return differ
}

// asked returns a load balancer that was read as it was requested, if it is as HNS
// returned it then; else as it was read.
func (j *journal) asked(lb LoadBalancer) LoadBalancer {
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

// prune forgets what HNS does not have: at once where we had deleted it, and
// otherwise at the second time, since HNS that has just started may not show
// everything yet. Only ids that were there before HNS was read are looked at.
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

// all returns the ids that are owned.
func (j *journal) all() map[string]bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	ids := make(map[string]bool, len(j.ids))
	for id := range j.ids {
		ids[id] = true
	}
	return ids
}

// close closes the file. From then on it may be another process's, and nothing is written.
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
