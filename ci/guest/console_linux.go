// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"strconv"
	"strings"
)

// The lines of init.sh between which all output is the program's. The latter
// ends with its exit code.
const (
	begin  = "--the-program-begins--"
	finish = "--the-program-ends--"
)

// The states of a console.
const (
	booting = iota
	running
	ended
)

// console passes on the lines between begin and finish, and keeps what came
// before, up to its limit.
type console struct {
	to    io.Writer
	boot  bytes.Buffer
	line  bytes.Buffer // the beginning of a line
	state int
	code  int // the program's exit code, once it has ended
}

const bootLimit, lineLimit = 64 << 10, 1 << 20

func (c *console) Write(b []byte) (n int, err error) {
	n = len(b)
	for len(b) > 0 && err == nil {
		part, rest, whole := bytes.Cut(b, []byte{'\n'})
		c.line.Write(part)
		if b = rest; whole || c.line.Len() > lineLimit {
			err = c.end()
		}
	}
	return n, err
}

// end handles a complete line. Terminals end lines with a carriage return, too.
func (c *console) end() (err error) {
	line := strings.TrimSuffix(c.line.String(), "\r")
	c.line.Reset()
	switch {
	case c.state == booting && line == begin:
		c.state = running
	case c.state == booting && c.boot.Len() < bootLimit:
		c.boot.WriteString(line + "\n")
	case c.state == running:
		text, code, last := strings.Cut(line, finish)
		if !last {
			text += "\n"
		} else if c.code, err = strconv.Atoi(code); err == nil {
			c.state = ended
		}
		if _, failed := io.WriteString(c.to, text); failed != nil {
			err = failed
		}
	}
	return err
}
