//go:build !linux

package main

import "os/exec"

func own(*exec.Cmd) {}

func end(*exec.Cmd) {}
