// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/windows/svc/eventlog"
	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/tandem-proxy/tandem/windows/folders"
)

// How much of the log is kept: lumberjack's files are in MiB. Of crashes there are two files of
// little more than maxCrashes bytes: a service that crashes is started again every minute.
const (
	fileSize   = 32
	oldFiles   = 4
	maxCrashes = 4 << 20
)

// The ids of records in the Event Log. Operators search for them: none changes its
// meaning.
const (
	eventStarted = 1
	eventStopped = 2
	eventFailed  = 3
)

// serviceLog is a service's log: a file that is rotated when it is full. Start and
// end go to the Event Log as well, a crash to a file of its own.
type serviceLog struct {
	io.WriteCloser
	events *eventlog.Log // nil without one
	crash  *os.File
	path   string
}

func openLog() (*serviceLog, error) {
	dirs, err := folders.Make()
	if err != nil {
		return nil, err
	}
	path, crashes := filepath.Join(dirs.Logs, Name+".log"), filepath.Join(dirs.Logs, "crash.log")
	for _, file := range []string{path, crashes} { // who made it could read it, or lead it elsewhere
		if _, err := folders.DeleteUntrusted(file); err != nil {
			return nil, fmt.Errorf("log: %w", err)
		}
	}
	l := &serviceLog{path: path, WriteCloser: &lumberjack.Logger{Filename: path, MaxSize: fileSize, MaxBackups: oldFiles}}
	if l.crash, err = openCrashes(crashes); err != nil {
		return nil, fmt.Errorf("crash log: %w", err)
	}
	if err := debug.SetCrashOutput(l.crash, debug.CrashOptions{}); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", l.crash.Name(), err), l.crash.Close())
	}
	l.events, _ = eventlog.Open(Name) // without a source by that name there is the log file
	return l, nil
}

// openCrashes opens the file that crashes are appended to. A full one becomes the old one; where
// that fails, since a program reads it, there is another attempt at the next start.
func openCrashes(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() >= maxCrashes {
		_ = os.Rename(path, path+".old")
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// Close closes the files.
func (l *serviceLog) Close() error {
	if l.events != nil {
		_ = l.events.Close()
	}
	return errors.Join(debug.SetCrashOutput(nil, debug.CrashOptions{}), l.crash.Close(), l.WriteCloser.Close())
}

// started records that the service starts, and why it would not be restarted when
// it fails.
func (l *serviceLog) started(recovery error) {
	if recovery != nil {
		l.line("setting recovery actions failed: " + recovery.Error())
	}
	if l.events != nil {
		_ = l.events.Info(eventStarted, "Tandem starts. Its log is "+l.path+".")
	}
}

// ended records how the service ended.
func (l *serviceLog) ended(err error) {
	if err != nil {
		l.line(err.Error())
	}
	switch {
	case l.events == nil:
	case err == nil:
		_ = l.events.Info(eventStopped, "Tandem has stopped. Services stay programmed.")
	default:
		_ = l.events.Error(eventFailed, fmt.Sprintf("Tandem has failed: %v. See %s.", err, l.path))
	}
}

// stacks writes the stacks of all goroutines.
func (l *serviceLog) stacks() {
	buf := make([]byte, 1<<20)
	l.line(string(buf[:runtime.Stack(buf, true)]))
}

// line writes a line of the service itself, in the form of the program's errors.
func (l *serviceLog) line(text string) {
	fmt.Fprintf(l, "%s %s: %s\n", time.Now().Format(time.RFC3339), Name, text)
}
