// SPDX-License-Identifier: Apache-2.0

// Command pack makes the MSI and the zip for Windows of a tandem.exe:
//
//	go run ./installers/windows/pack -version v1.2.3 -exe bin/tandem.exe -out dist
//
// With -certs and -key it signs them, and the program in them. SOURCE_DATE_EPOCH
// is the time of everything in them; without it, they are of 1980.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/tandem-proxy/tandem/installers/windows"
)

func main() {
	var o windows.Options
	var s windows.Signature
	flag.StringVar(&o.Exe, "exe", "", "the program for Windows")
	flag.StringVar(&o.Version, "version", "", "its version, as in v1.2.3")
	flag.StringVar(&o.Arch, "arch", "amd64", "architecture: amd64 or arm64")
	flag.StringVar(&o.License, "license", "LICENSE", "the file with the license")
	flag.StringVar(&o.Out, "out", "dist", "the folder for what is made")
	flag.StringVar(&s.Certificates, "certs", "", "file with the certificates to sign with, PEM")
	flag.StringVar(&s.Key, "key", "", "file with their key, PEM")
	flag.StringVar(&s.TimeServer, "time-server", "", "URL of an RFC 3161 server that signs the time")
	flag.Parse()
	if s.Key != "" {
		o.Sign = &s
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o windows.Options) (err error) {
	if o.Exe == "" || o.Version == "" {
		return errors.New("name the program with -exe and its version with -version")
	}
	if o.Date, err = date(os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		return err
	}
	files, err := windows.Build(ctx, o)
	for _, f := range files {
		fmt.Println(f)
	}
	return err
}

// date is that of everything inside. Cabinets and zips have none before 1980.
func date(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Date(1980, 1, 2, 0, 0, 0, 0, time.UTC), nil
	}
	n, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(n, 0).UTC(), nil
}
