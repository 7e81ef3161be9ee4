//go:build linux

package realhosts

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// TestOwnerHelper is the process that TestOwnerDies kills: it brings a lab up and waits.
func TestOwnerHelper(t *testing.T) {
	dir := os.Getenv("REALHOSTS_HELPER_DIR")
	if dir == "" {
		return // only TestOwnerDies runs it
	}
	_, err := Up(context.Background(), Config{Nodes: 1, Dir: dir, Binary: os.Getenv("REALHOSTS_HELPER_BINARY"),
		Progress: func(line string) { os.Stdout.WriteString("progress: " + line + "\n") }})
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("progress: all up\n")
	time.Sleep(time.Hour)
}

// killOwner runs a process that brings a lab up in dir, and kills it when its progress reaches a line that starts
// with at, or a moment after that.
func killOwner(t *testing.T, dir, binary, at string, after time.Duration) {
	t.Helper()
	cmd := exec.CommandContext(within(t, 3*time.Minute), os.Args[0], "-test.run=^TestOwnerHelper$")
	cmd.Env = append(os.Environ(), "REALHOSTS_HELPER_DIR="+dir, "REALHOSTS_HELPER_BINARY="+binary)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "progress: "+at) {
			time.Sleep(after)
			cmd.Process.Kill()
			cmd.Wait()
			return
		}
		t.Log(lines.Text())
	}
	t.Fatalf("the helper ended before %q: %v", at, cmd.Wait())
}

// TestOwnerDies kills the process that called Up: hosts run on, and each way to clean up after it works.
func TestOwnerDies(t *testing.T) {
	needHosts(t)
	binary := nodeBinary(t)

	t.Run("up, then down from the folder", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "lab")
		killOwner(t, dir, binary, "all up", 0)
		c, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		st := c.State()
		if out, err := c.Exec(within(t, time.Minute), "001", "docker", "ps", "-q"); err != nil || len(out) == 0 {
			t.Errorf("the host did not outlive the owner: %q %v", out, err)
		}
		if err := Down(within(t, 3*time.Minute), dir); err != nil {
			t.Fatal(err)
		}
		assertGone(t, &st, dir)
	})

	t.Run("midway, then reaped by another lab", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "lab")
		killOwner(t, dir, binary, "making", 700*time.Millisecond) // the host boots, its engine does not answer yet
		st, err := loadState(dir)
		if err != nil {
			t.Fatal(err)
		}
		other, err := claim(within(t, 3*time.Minute), Config{Nodes: 1, SuperFrom: 6, Dir: filepath.Join(t.TempDir(), "other"), NodeEnv: func(int) []string { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Down(within(t, 3*time.Minute)); err != nil {
			t.Error(err)
		}
		assertGone(t, st, dir)
		if _, err := os.Stat(filepath.Join(dir, StateFile)); err != nil {
			t.Errorf("reaping took the files of another folder: %v", err)
		}
		if err := Down(within(t, 3*time.Minute), dir); err != nil {
			t.Errorf("down of a lab that was reaped: %v", err)
		}
	})

	t.Run("folder deleted, then reaped", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "lab")
		killOwner(t, dir, binary, "making", 0)
		st, err := loadState(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, StateFile)); err != nil {
			t.Fatal(err)
		}
		if err := reapDead(within(t, 3*time.Minute)); err != nil {
			t.Fatal(err)
		}
		assertGone(t, st, dir)
	})
}

// TestTwoLabs runs two labs side by side: they share no address, and one going down leaves the other alone.
func TestTwoLabs(t *testing.T) {
	needHosts(t)
	binary := nodeBinary(t)
	var labs [2]*Cluster
	var group errgroup.Group
	for i := range labs {
		dir := filepath.Join(t.TempDir(), "lab")
		group.Go(func() (err error) {
			labs[i], err = Up(within(t, 3*time.Minute), Config{Nodes: 1, Dir: dir, Binary: binary})
			return err
		})
	}
	err := group.Wait()
	for _, lab := range labs {
		if lab != nil {
			t.Cleanup(func() { lab.Down(within(t, 3*time.Minute)) })
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if one, two := labs[0].State(), labs[1].State(); one.Hosts[0].Address == two.Hosts[0].Address || one.Bridge == two.Bridge {
		t.Errorf("both labs have %s on %s", one.Hosts[0].Address, one.Bridge)
	}
	if err := labs[0].Down(within(t, 3*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if conn, err := dial(t, labs[1], labs[1].Hosts()[0], "root"); err != nil {
		t.Errorf("the other lab after the first went down: %v", err)
	} else {
		conn.Close()
	}
}

// TestFailedUp lets Up fail late, at a node that does not exist, and finds nothing left.
func TestFailedUp(t *testing.T) {
	needHosts(t)
	dir := filepath.Join(t.TempDir(), "lab")
	_, err := Up(within(t, 3*time.Minute), Config{Nodes: 1, Dir: dir, Binary: nodeBinary(t), Image: "no-such-tag"})
	if err == nil || !strings.Contains(err.Error(), "host 001: pulling") {
		t.Errorf("up with an image that does not exist: %v", err)
	}
	if _, err := loadState(dir); !errors.Is(err, ErrNoLab) {
		t.Errorf("record left: %v", err)
	}
	if found, err := labsOnMachine(); err != nil {
		t.Error(err)
	} else {
		for lab := range found {
			if lab.dir == dir {
				t.Errorf("left on the machine: %+v", lab)
			}
		}
	}
}

// TestRemoveRefusesMounts proves that deleting never walks into a mount.
func TestRemoveRefusesMounts(t *testing.T) {
	needHosts(t)
	dir := t.TempDir()
	point := filepath.Join(dir, "hosts/001/a folder")
	if err := os.MkdirAll(point, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", point, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) })
	precious := filepath.Join(point, "precious")
	if err := os.WriteFile(precious, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "hosts"), point} {
		var mounted *MountedError
		if err := removeTree(path); !errors.As(err, &mounted) || len(mounted.Mounts) != 1 || mounted.Mounts[0] != point {
			t.Errorf("deleting %s: %v", path, err)
		}
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("walked into the mount: %v", err)
	}
	if err := unix.Unmount(point, 0); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(filepath.Join(dir, "hosts")); err != nil {
		t.Error(err)
	}
}
