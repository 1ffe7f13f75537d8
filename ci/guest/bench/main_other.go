//go:build !linux

package main

import "log"

func main() { log.Fatal("IPVS is part of Linux") }
