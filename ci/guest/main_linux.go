// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	g := guest{Out: os.Stdout}
	flag.StringVar(&g.Engine, "engine", "", "qemu, uml, or auto for what works here (default $TANDEM_GUEST, auto)")
	flag.StringVar(&g.Kernel, "kernel", os.Getenv("TANDEM_GUEST_KERNEL"), "its version, such as 6.12 (default $TANDEM_GUEST_KERNEL, any)")
	flag.IntVar(&g.Memory, "memory", 1536, "its memory in MiB")
	flag.StringVar(&g.Append, "append", "", "parameters of the kernel, such as ipv6.disable=1")
	without := flag.String("without", "", "modules to leave out, separated by commas (QEMU only)")
	with := flag.String("with", "", "more files and folders of this machine, as patterns, separated by commas (UML has them all)")
	limit := flag.Duration("limit", 20*time.Minute, "how long the program may take")
	probe := flag.Bool("probe", false, "run nothing: print which engine works here, or why none does")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: guest [flags] PROGRAM [ARGUMENT...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	g.With, g.Without = list(*with), list(*without)
	if flag.NArg() == 0 != *probe {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code, err := g.main(ctx, *probe, *limit, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// list returns what commas separate.
func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

// main chooses the engine and runs the program with it. The limit does not count
// the time that other guests take.
func (g *guest) main(ctx context.Context, probe bool, limit time.Duration, program []string) (int, error) {
	e, err := g.choose(ctx)
	if err != nil {
		return 0, err
	}
	if probe {
		fmt.Println("guest: " + e.String())
		return 0, nil
	}
	release, err := take(ctx, g.Memory+engineMemory)
	if err != nil {
		return 0, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return g.run(ctx, e, program)
}

// choose finds an engine that works here. The error has the reason if none does.
func (g *guest) choose(ctx context.Context) (engine, error) {
	name := cmp.Or(g.Engine, os.Getenv("TANDEM_GUEST"), "auto")
	if name != "auto" && name != "qemu" && name != "uml" {
		return nil, fmt.Errorf("there is no engine %q: qemu, uml or auto", name)
	}
	var problems []error
	if name == "uml" || name == "auto" && g.Kernel == "" && len(g.Without) == 0 {
		e, err := findUML(ctx, g)
		if err == nil {
			return e, nil
		}
		problems = append(problems, fmt.Errorf("UML: %w", err))
	}
	if name != "uml" {
		e, err := findQEMU(ctx, g)
		if err == nil {
			return e, nil
		}
		problems = append(problems, fmt.Errorf("QEMU: %w", err))
	}
	return nil, errors.Join(problems...)
}
