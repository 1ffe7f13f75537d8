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

// How much of the log is kept: lumberjack's files are in MiB.
const (
	fileSize = 32
	oldFiles = 4
)

// The ids of what the Event Log is told. They are part of what operators search
// for: none changes its meaning.
const (
	eventStarted = 1
	eventStopped = 2
	eventFailed  = 3
)

// diary is where a service tells what nobody can see on a screen: its log goes
// to a file that is replaced when it is full, its start and end to the Event Log
// as well, a crash to a file of its own.
type diary struct {
	io.WriteCloser
	events *eventlog.Log // nil without one
	crash  *os.File
	path   string
}

func openDiary() (*diary, error) {
	dirs, err := folders.Make()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dirs.Logs, Name+".log")
	d := &diary{path: path, WriteCloser: &lumberjack.Logger{Filename: path, MaxSize: fileSize, MaxBackups: oldFiles}}
	if d.crash, err = os.OpenFile(filepath.Join(dirs.Logs, "crash.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return nil, fmt.Errorf("the file for crashes: %w", err)
	}
	if err := debug.SetCrashOutput(d.crash, debug.CrashOptions{}); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", d.crash.Name(), err), d.crash.Close())
	}
	d.events, _ = eventlog.Open(Name) // without a source by that name the log file remains
	return d, nil
}

// Close closes the files.
func (d *diary) Close() error {
	if d.events != nil {
		_ = d.events.Close()
	}
	return errors.Join(debug.SetCrashOutput(nil, debug.CrashOptions{}), d.crash.Close(), d.WriteCloser.Close())
}

// started tells that the service starts, and what is missing to have it started
// again when it fails.
func (d *diary) started(recovery error) {
	if recovery != nil {
		d.line("the recovery actions are not set: " + recovery.Error())
	}
	if d.events != nil {
		_ = d.events.Info(eventStarted, "Tandem starts. Its log is "+d.path+".")
	}
}

// ended tells how the service ended.
func (d *diary) ended(err error) {
	if err != nil {
		d.line(err.Error())
	}
	switch {
	case d.events == nil:
	case err == nil:
		_ = d.events.Info(eventStopped, "Tandem has stopped. What is programmed stays, and works.")
	default:
		_ = d.events.Error(eventFailed, fmt.Sprintf("Tandem has failed: %v. More is in %s.", err, d.path))
	}
}

// stacks writes what all goroutines are doing.
func (d *diary) stacks() {
	buf := make([]byte, 1<<20)
	d.line(string(buf[:runtime.Stack(buf, true)]))
}

// line writes a line that is not of the program's own log, in the form in which
// the program would say it on a screen.
func (d *diary) line(text string) {
	fmt.Fprintf(d, "%s %s: %s\n", time.Now().Format(time.RFC3339), Name, text)
}
