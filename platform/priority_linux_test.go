// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"errors"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/linux/host"
)

// Answers have a low priority, what they start and what comes after them has not. A thread whose
// priority stays low ends, but for the main one, which runs no goroutine any more.
func TestAnswersGiveWay(t *testing.T) {
	nice := func() int {
		n, err := host.Nice()
		if err != nil {
			t.Error(err)
		}
		return n
	}
	usual := nice()
	if usual+lowering > 19 {
		t.Skipf("skipped: the test has a nice value of %d, nothing is to be lowered", usual)
	}
	for restorable, f := range map[bool]func() (func() error, error){
		true: lower,
		false: func() (func() error, error) {
			_, err := lower()
			return func() error { return errors.New("not permitted") }, err
		},
	} {
		p := &Proxy{system: system{lower: f}, log: slog.New(slog.DiscardHandler)}
		for range 50 {
			threads, others := make(chan int), make(chan int, 1)
			go func() {
				end := p.giveWay()
				if n := nice(); n != usual+lowering {
					t.Errorf("an answer has a nice value of %d, others of %d", n, usual)
				}
				go func() { others <- nice() }()
				end()
				if n := nice(); restorable && n != usual {
					t.Errorf("after an answer the nice value is %d, it was %d", n, usual)
				}
				threads <- unix.Gettid()
			}()
			tid := <-threads
			if n := <-others; n != usual {
				t.Errorf("what an answer starts has a nice value of %d, others of %d", n, usual)
			}
			for begin := time.Now(); !restorable && tid != os.Getpid(); runtime.Gosched() {
				if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(tid)); err != nil {
					break
				}
				if time.Since(begin) > time.Minute {
					t.Fatal("the thread of an answer has not ended")
				}
			}
		}
	}
}
