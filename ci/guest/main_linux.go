package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	g := guest{Out: os.Stdout}
	flag.StringVar(&g.Kernel, "kernel", "linux.uml", "the user-mode kernel")
	flag.IntVar(&g.Memory, "memory", 2048, "its memory in MiB")
	limit := flag.Duration("limit", 20*time.Minute, "how long the program may take")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: uml [flags] PROGRAM [ARGUMENT...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, *limit)
	code, err := g.run(ctx, flag.Args())
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "uml:", err)
		os.Exit(1)
	}
	os.Exit(code)
}
