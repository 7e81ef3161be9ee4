package lease_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qnetops/qnetops/internal/need"
	"github.com/qnetops/qnetops/internal/pgtest"
	"github.com/qnetops/qnetops/lease"
)

const poll = 250 * time.Millisecond

// A crash is followed in the time of the silence, by the same identity and nobody else. (1 with processes: package run.)
func TestScenario01CrashAndRestart(t *testing.T) {
	t.Parallel()
	for _, p := range []*lease.Policy{fast(), steady()} {
		t.Run(p.Profile, func(t *testing.T) {
			t.Parallel()
			scenario(t, pgtest.DSN, func(s *scene) {
				first := s.hold(s.as("first", p))
				if first.How() != lease.ByInsert || first.Mode() != lease.Guarded {
					t.Errorf("first: %s %s", first.How(), first.Mode())
				}
				s.crash(first)
				r := s.got(s.take(context.Background(), s.as("second", p)), p.Silence) // no waiting for others was asked for
				s.atLeast("adoption", r.took, p.Silence)
				s.within("adoption", r.took, p.Silence+300*time.Millisecond)
				if r.h.How() != lease.ByAdopt || r.h.Token().Epoch != first.Token().Epoch+1 {
					t.Errorf("%s, generation %d after %d", r.h.How(), r.h.Token().Epoch, first.Token().Epoch)
				}
			})
		})
	}
}

// A candidate that lives by faster rules still gives a steady holder the time that the holder lives by.
func TestFastCandidateWaitsForSteadyHolder(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		s.crash(s.hold(s.as("first", steady())))
		r := s.got(s.take(context.Background(), s.as("second", fast())), steady().Silence)
		s.atLeast("adoption", r.took, steady().Silence)
	})
}

func TestScenario02StandbysWaitOnTheGuard(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		p := fast()
		first := s.hold(s.as("first", p))
		var got atomic.Int32
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		winner := make(chan result, 12)
		for i := range 12 {
			o := s.as(fmt.Sprint("standby ", i), p)
			o.Wait = time.Minute
			c := s.take(ctx, o)
			go func() {
				if r := <-c; r.err == nil {
					got.Add(1)
					winner <- r
				}
			}()
		}
		s.wait(500 * time.Millisecond)
		begin := boot()
		s.crash(first)
		select {
		case <-winner:
		case <-time.After(10 * time.Second):
			s.soft("no standby took over")
		}
		took := boot() - begin
		s.atLeast("take-over", took, p.Silence)
		s.within("take-over", took, poll+p.Silence+300*time.Millisecond)
		s.wait(p.Silence)
		if n := got.Load(); n != 1 {
			t.Errorf("%d of 12 standbys hold it", n)
		}
	})
}

// A release is followed at once. (3 with a watchdog: package run.)
func TestScenario03ReleaseIsFollowedAtOnce(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		first := s.hold(s.as("first", steady()))
		if err := first.Abandon(5*time.Second, "watchdog: stuck"); err != nil {
			s.soft("%v", err)
		}
		r := s.got(s.take(context.Background(), s.as("second", steady())), 500*time.Millisecond)
		s.within("take-over after a release", r.took, 500*time.Millisecond)
		if r.h.How() != lease.ByRelease || r.h.Token().Epoch != 2 {
			t.Errorf("%s %d", r.h.How(), r.h.Token().Epoch)
		}
	})
}

// A database that hangs cannot hold up an exit, and what was not given back is not called so.
func TestScenario04AbandonWhileTheDatabaseHangs(t *testing.T) {
	t.Parallel()
	server := pgtest.StartWith(t, pgtest.Config{TCP: "127.0.0.1"})
	scenario(t, server.DSN, func(s *scene) {
		proxy := server.NewProxy(t)
		o := s.as("first", steady())
		o.DB = s.dbAt(server.Over(s.dsn, "127.0.0.1", proxy.Port))
		h := s.hold(o)
		proxy.Cut()
		defer proxy.Heal()
		begin := boot()
		err := h.Abandon(time.Second, "watchdog")
		took := boot() - begin
		s.log.End("first", boot())
		if err == nil {
			t.Error("given back through a dead path")
		}
		s.within("giving up", took, 1200*time.Millisecond)
		if _, _, released := s.row(); released {
			t.Error("the row says released")
		}
	})
}

// Issues kubernetes-sigs/controller-runtime#1132 and kubernetes/client-go#728 too: no release while work is still running.
func TestScenario05NoReleaseWhileAWriteIsInFlight(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		p := fast()
		h := s.hold(s.as("first", p))
		work, err := h.Admit()
		if err != nil {
			s.soft("%v", err)
		}
		begin := boot()
		err = h.Abandon(time.Second, "watchdog")
		took := boot() - begin
		if !errors.Is(err, lease.ErrWithheld) {
			s.soft("%v", err)
		}
		s.atLeast("waiting for the write", took, time.Second)
		s.within("waiting for the write", took, time.Second)
		if token, _, released := s.row(); released || token != h.SessionToken() {
			t.Errorf("released=%v token=%s", released, token)
		}
		if _, err := h.Admit(); err == nil {
			t.Error("new work was admitted after the end")
		}
		if w, err := work.Nested(); err != nil {
			t.Errorf("nested work of admitted work: %v", err)
		} else {
			w.Done()
		}
		work.Done()
		work.Done()
		r := s.got(s.take(context.Background(), s.as("second", p)), p.Silence)
		s.atLeast("adoption", r.took, p.Silence)
		if r.h.How() != lease.ByAdopt {
			t.Error(r.h.How())
		}
	})
}

func TestScenario06WedgedSlot(t *testing.T) {
	t.Parallel()
	for _, p := range []*lease.Policy{fast(), steady()} {
		t.Run(p.Profile, func(t *testing.T) {
			t.Parallel()
			scenario(t, pgtest.DSN, func(s *scene) {
				var code atomic.Int32
				o := s.as("first", p)
				o.Exit = func(c lease.Code, _ string) { code.CompareAndSwap(0, int32(c)) }
				h := s.hold(o)
				defer h.Wedge()()
				proven := h.Proven()
				s.lost(h, lease.CodeTooOld, p.Exit)
				age := boot() - proven
				s.atLeast("the age at the loss", age, p.Exit)
				s.within("the age at the loss", age, p.Exit+p.Monitor)
				if code.Load() != int32(lease.CodeTooOld) {
					t.Errorf("exit called with %d", code.Load())
				}
			})
		})
	}
}

func TestScenario10LiveTwin(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		p := ttl(steady(), 3*time.Second)
		h := s.hold(s.as("first", p))
		o := s.as("twin", p)
		o.Wait = 5 * time.Second
		c := s.take(context.Background(), o)
		begin := boot()
		r := <-c
		var held *lease.HeldError
		s.alive(h)
		if !errors.As(r.err, &held) || !held.Twin || held.Code() != lease.CodeTwin || held.Owner != "first" || held.PID != os.Getpid() {
			t.Fatalf("the twin: %v", r.err)
		}
		s.atLeast("the twin's patience", boot()-begin, 5*time.Second)
		if _, generation, _ := s.row(); generation != 1 {
			t.Errorf("generation %d", generation)
		}
		if err := h.Check(context.Background()); err != nil {
			s.soft("the holder was disturbed: %v", err)
		}
	})
}

func TestScenario11GuardTerminated(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		p := fast()
		h := s.hold(s.as("first", p))
		o := s.as("standby", p)
		o.Wait = time.Minute
		c := s.take(context.Background(), o)
		s.wait(300 * time.Millisecond)
		s.exec(s.sql(), "SELECT pg_terminate_backend($1)", int64(h.GuardPID()))
		freed := boot()
		s.lost(h, lease.CodeGuardLost, p.Beat+100*time.Millisecond)
		r := s.got(c, p.Silence+poll)
		_ = r
		s.atLeast("take-over after the guard was freed", boot()-freed, p.Silence)
	})
}

func TestScenario12PostgresRestarts(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*pgtest.Server){"fast": (*pgtest.Server).Stop, "immediate": (*pgtest.Server).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Start(t)
			scenario(t, server.DSN, func(s *scene) {
				p := fast()
				h := s.hold(s.as("first", p))
				o := s.as("standby", p)
				o.Wait = time.Minute
				c := s.take(context.Background(), o)
				s.wait(300 * time.Millisecond)
				end(server)
				s.lost(h, lease.CodeGuardLost, p.Beat+100*time.Millisecond)
				s.none(c, time.Second)
				begin := boot()
				server.Run(t)
				s.got(c, p.Silence+time.Second)
				s.atLeast("take-over after the start", boot()-begin, p.Silence)
			})
		})
	}
}

// namespace is a network of its own for a server, with one link to it that can be made to swallow everything.
func namespace(t *testing.T) (name, address string, swallow func()) {
	t.Helper()
	need.Root(t)
	tools := need.Program(t, "ip", "iptables")
	id := fmt.Sprintf("%x", time.Now().UnixNano()&0xffffff)
	name = "qnl" + id
	third, fourth := int(time.Now().UnixNano()>>8&0xff), int(time.Now().UnixNano()>>16&0x3f)*4
	address = fmt.Sprintf("198.18.%d.%d", third, fourth+2)
	do := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	ip := tools[0]
	t.Cleanup(func() { _ = exec.Command(ip, "netns", "del", name).Run() })
	do(ip, "netns", "add", name)
	do(ip, "link", "add", "qnh"+id, "type", "veth", "peer", "name", "qns"+id, "netns", name)
	do(ip, "addr", "add", fmt.Sprintf("198.18.%d.%d/30", third, fourth+1), "dev", "qnh"+id)
	do(ip, "link", "set", "qnh"+id, "up")
	do(ip, "netns", "exec", name, ip, "addr", "add", address+"/30", "dev", "qns"+id)
	do(ip, "netns", "exec", name, ip, "link", "set", "qns"+id, "up")
	do(ip, "netns", "exec", name, ip, "link", "set", "lo", "up")
	return name, address, func() {
		t.Helper()
		do(ip, "netns", "exec", name, tools[1], "-A", "INPUT", "-i", "qns"+id, "-j", "DROP")
		do(ip, "netns", "exec", name, tools[1], "-A", "OUTPUT", "-o", "qns"+id, "-j", "DROP")
	}
}

// partition is the common part of 13 and 14: the holder comes over a link that then swallows everything, its successor
// over another way. The server learns of it by its own probes.
func partition(t *testing.T, kill bool) {
	scenario(t, func(t testing.TB) string { return "" }, func(s *scene) {
		name, address, swallow := namespace(t)
		server := pgtest.StartWith(t, pgtest.Config{TCP: "*", Namespace: name})
		s.dsn = server.DSN(t)
		p := fast()
		o := s.as("first", p)
		o.DB = s.dbAt(server.Over(s.dsn, address, server.Port))
		h := s.hold(o)
		w := s.as("standby", p)
		w.Wait = time.Minute
		c := s.take(context.Background(), w)
		s.wait(300 * time.Millisecond)
		proven := h.Proven()
		swallow()
		if kill {
			s.crash(h)
		} else {
			s.lost(h, 0, p.Exit)
			if cause := context.Cause(h.Context()); lease.LossCode(cause) != lease.CodeTooOld && lease.LossCode(cause) != lease.CodeGuardLost {
				t.Error(cause)
			}
		}
		s.none(c, p.Dead-2*time.Second) // the server still believes in it
		s.got(c, p.Dead+p.Silence)
		s.atLeast("take-over after the last proof", boot()-proven, p.Dead-time.Second+p.Silence)
		s.within("take-over after the last proof", boot()-proven, p.Dead+p.Silence+300*time.Millisecond)
	})
}

func TestScenario13Blackhole(t *testing.T) {
	t.Parallel()
	partition(t, false)
}

func TestScenario14HostLoss(t *testing.T) {
	t.Parallel()
	partition(t, true)
}

// Issue Qbit-Org/qbit-mining-bootstrap#114 too. The control renews by a plain UPDATE and dies of its own write.
func TestScenario15OwnLongWrite(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		h := s.hold(s.as("first", steady()))
		control := s.sql()
		s.exec(control, "SET statement_timeout = 500")
		died := make(chan error, 1)
		err := h.Write(context.Background(), func(ctx context.Context, tx pgx.Tx) error {
			go func() {
				_, err := control.Exec(context.Background(), `UPDATE qnetops_lease SET renewals = renewals WHERE scope = 'scene'`)
				died <- err
			}()
			_, err := tx.Exec(ctx, "SELECT pg_sleep(3)")
			if state := h.State(); state != lease.Holding {
				s.soft("state %s during the write", state)
			}
			if err := h.Check(ctx); err != nil { // most of the TTL is left
				s.soft("a fence beside our own short write: %v", err)
			}
			return err
		})
		if err != nil {
			s.soft("%v", err)
		}
		s.alive(h)
		if err := <-died; err == nil || !strings.Contains(err.Error(), "57014") {
			t.Errorf("the control lived: %v", err)
		}
		if err := h.Check(context.Background()); err != nil {
			s.soft("%v", err)
		}
	})
}

// Issue #116 too: the row is hidden from the beat by our own write, and by nobody else's claim.
func TestScenario16OwnWriteLongerThanTTL(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		p := ttl(steady(), 3*time.Second)
		h := s.hold(s.as("first", p))
		o := s.as("rival", p)
		o.Writer, o.Wait = "other", time.Minute
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c := s.take(ctx, o)
		err := h.Write(context.Background(), func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT pg_sleep(4.5)"); err != nil {
				return err
			}
			if err := h.Check(ctx); !errors.Is(err, lease.ErrDeferred) {
				s.soft("a fence beside a write that has used up the TTL: %v", err)
			}
			if state := h.State(); state != lease.Deferred {
				s.soft("state %s", state)
			}
			return nil
		})
		if err != nil {
			s.soft("%v", err)
		}
		s.alive(h)
		s.none(c, p.Silence)
		if err := h.Check(context.Background()); err != nil {
			s.soft("after the write: %v", err)
		}
	})
}

// Issue jackc/pgx#659 too: a statement whose client is gone must not commit later.
func TestScenario17KilledDuringAWrite(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		p := fast()
		s.exec(s.sql(), "CREATE TABLE effects (n int)")
		h := s.hold(s.as("first", p))
		ctx, kill := context.WithCancel(context.Background())
		wrote := make(chan error, 1)
		started := make(chan struct{})
		go func() {
			wrote <- h.Write(ctx, func(ctx context.Context, tx pgx.Tx) error {
				close(started)
				_, err := tx.Exec(ctx, "INSERT INTO effects SELECT 1 FROM pg_sleep(8)")
				return err
			})
		}()
		<-started
		s.wait(200 * time.Millisecond)
		s.crash(h)
		kill() // the socket closes, as with the process
		begin := boot()
		o := s.as("second", p)
		o.Wait = time.Minute
		s.got(s.take(context.Background(), o), p.Silence+250*time.Millisecond)
		took := boot() - begin
		s.atLeast("adoption", took, p.Silence)
		s.within("adoption", took, p.Silence+500*time.Millisecond)
		if err := <-wrote; err == nil {
			t.Error("the write says it succeeded")
		}
		var n int
		if err := s.sql().QueryRow(context.Background(), "SELECT count(*) FROM effects").Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows of the dead session (%v)", n, err)
		}
	})
}

func TestScenario18ManyIdentitiesAtOnce(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		p := steady()
		if _, err := lease.Show(context.Background(), s.db(), "scene"); !errors.Is(err, lease.ErrNone) {
			t.Fatal(err)
		}
		for round := range 3 {
			begin := make(chan struct{})
			results := make(chan result, 12)
			for i := range 12 {
				o := s.as(fmt.Sprintf("%d/%d", round, i), p)
				o.Writer = fmt.Sprint("writer ", i)
				go func() {
					<-begin
					h, err := lease.Hold(context.Background(), o)
					results <- result{h: h, err: err}
				}()
			}
			close(begin)
			var winner *lease.Held
			for range 12 {
				r := <-results
				var held *lease.HeldError
				switch {
				case r.err == nil && winner == nil:
					winner = r.h
				case r.err == nil:
					t.Error("two winners")
				case !errors.As(r.err, &held):
					s.soft("%v", r.err)
				case held.Code() != lease.CodeHeld:
					t.Errorf("code %d", held.Code())
				}
			}
			if winner == nil {
				s.soft("nobody won")
			}
			_ = winner.Release(context.Background())
		}
	})
}

func TestScenario19OtherIdentitiesWaitForTheTTL(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*lease.Options){
		"epoch":  func(o *lease.Options) { o.WriterEpoch = 2 },
		"writer": func(o *lease.Options) { o.Writer = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(t, pgtest.DSN, func(s *scene) {
				p := ttl(fast(), 4*time.Second)
				h := s.hold(s.as("first", p))
				proven := h.Proven()
				s.crash(h)
				o := s.as("second", p)
				change(&o)
				if _, err := lease.Hold(context.Background(), o); !errors.As(err, new(*lease.HeldError)) {
					t.Errorf("without waiting: %v", err)
				}
				o.Wait = time.Minute
				r := s.got(s.take(context.Background(), o), p.TTL)
				age := boot() - proven
				s.atLeast("take-over", age, p.TTL)
				s.within("take-over", age, p.TTL+p.Silence)
				if how := r.h.How(); how != lease.ByExpiry && how != lease.BySilence {
					t.Error(how)
				}
			})
		})
	}
}

// The control takes what the database's clock says for the truth and steals from a live holder.
func TestScenario20DatabaseClockJumpsAhead(t *testing.T) {
	t.Parallel()
	server := pgtest.StartWith(t, pgtest.Config{FakeClock: true})
	scenario(t, server.DSN, func(s *scene) {
		server.StepClock(t, 0)
		p := steady()
		h := s.hold(s.as("first", p))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		o := s.as("rival", p)
		o.Writer, o.Wait = "other", time.Minute
		c := s.take(ctx, o)
		control, stolen := s.sql(), 0
		for i := range 12 {
			server.StepClock(t, time.Duration(i+1)*2*time.Minute)
			tx, err := control.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for range 20 { // as fast as it can, as a rival whose poll falls into the gap would
				tag, err := tx.Exec(ctx, `UPDATE qnetops_lease SET released = released WHERE scope = 'scene' AND lease_expires_at <= clock_timestamp()`)
				if err != nil {
					t.Fatal(err)
				}
				if tag.RowsAffected() > 0 {
					stolen++
					break
				}
			}
			_ = tx.Rollback(ctx)
			s.none(c, poll)
		}
		s.alive(h)
		if stolen == 0 {
			t.Error("the control never saw the lease expired: the clock was not stepped")
		}
		server.StepClock(t, 0)
	})
}

func TestScenario21DatabaseClockJumpsBack(t *testing.T) {
	t.Parallel()
	server := pgtest.StartWith(t, pgtest.Config{FakeClock: true})
	for _, name := range []string{"same identity", "other identity"} {
		t.Run(name, func(t *testing.T) {
			scenario(t, server.DSN, func(s *scene) {
				p := ttl(fast(), 3*time.Second)
				server.StepClock(t, 0)
				h := s.hold(s.as("first", p))
				proven := h.Proven()
				server.StepClock(t, -time.Hour)
				s.crash(h)
				o := s.as("second", p)
				o.Wait = time.Minute
				want, bound := lease.ByAdopt, p.Silence
				if name == "other identity" {
					o.Writer, want, bound = "other", lease.BySilence, p.TTL
				}
				r := s.got(s.take(context.Background(), o), bound)
				s.atLeast("take-over", boot()-proven, bound)
				s.within("take-over", r.took, bound+300*time.Millisecond)
				if r.h.How() != want {
					t.Errorf("%s, want %s", r.h.How(), want)
				}
			})
		})
	}
}

// Issue #118 and #212 too: long but steady round trips must not kill a healthy holder of the steady profile.
func TestScenario22SlowReplies(t *testing.T) {
	t.Parallel()
	server := pgtest.StartWith(t, pgtest.Config{TCP: "127.0.0.1"})
	hold := func(s *scene, p *lease.Policy, delay time.Duration) *lease.Held {
		proxy := server.NewProxy(s.T)
		o := s.as("first", p)
		o.DB = s.dbAt(server.Over(s.dsn, "127.0.0.1", proxy.Port))
		h := s.hold(o)
		proxy.Delay(delay)
		return h
	}
	for _, delay := range []time.Duration{100, 200, 300, 400, 480} {
		delay *= time.Millisecond
		t.Run("steady/"+delay.String(), func(t *testing.T) {
			t.Parallel()
			scenario(t, server.DSN, func(s *scene) {
				h := hold(s, steady(), delay)
				s.wait(4 * time.Second)
				s.alive(h)
			})
		})
	}
	t.Run("fast/100ms", func(t *testing.T) {
		t.Parallel()
		scenario(t, server.DSN, func(s *scene) {
			h := hold(s, fast(), 100*time.Millisecond)
			s.wait(3 * time.Second)
			s.alive(h)
		})
	})
	for _, delay := range []time.Duration{400, 480} {
		delay *= time.Millisecond
		t.Run("fast/"+delay.String(), func(t *testing.T) {
			t.Parallel()
			scenario(t, server.DSN, func(s *scene) {
				h := hold(s, fast(), delay)
				s.lost(h, lease.CodeTooOld, 2*time.Second)
				if cause := context.Cause(h.Context()); !strings.Contains(cause.Error(), "750ms") {
					t.Errorf("does not say why: %v", cause)
				}
			})
		})
	}
}

// The control shows why: through a transaction pooler two clients get one session lock.
func TestScenario23Pooler(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	scenario(t, server.DSN, func(s *scene) {
		pooled := server.Bouncer(t, s.dsn) + "&default_query_exec_mode=exec"
		lenient := server.Bouncer(t, s.dsn, "ignore_startup_parameters = "+strings.Join([]string{"statement_timeout", "idle_session_timeout",
			"idle_in_transaction_session_timeout", "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout",
			"client_connection_check_interval", "synchronous_commit"}, ",")) + "&default_query_exec_mode=exec"
		var locks []bool
		for range 2 {
			conn, err := pgx.Connect(context.Background(), pooled)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			var got bool
			if err := conn.QueryRow(context.Background(), "SELECT pg_try_advisory_lock(42)").Scan(&got); err != nil {
				t.Fatal(err)
			}
			locks = append(locks, got)
		}
		if !locks[0] || !locks[1] {
			t.Error("the control did not get the lock twice: this is no transaction pooler")
		}
		for name, dsn := range map[string]string{"strict": pooled, "lenient": lenient} {
			o := s.as("refused "+name, steady())
			o.DB, o.RequireFast = s.dbAt(dsn), true
			var refused *lease.RefusedError
			if _, err := lease.Hold(context.Background(), o); !errors.As(err, &refused) || refused.Code != lease.CodePooler {
				t.Errorf("%s with RequireFast: %v", name, err)
			}
		}
		p := ttl(fast(), 3*time.Second)
		o := s.as("first", p)
		o.DB = s.dbAt(pooled)
		h := s.hold(o)
		if token, _, _ := s.row(); h.Mode() != lease.TTLOnly || strings.HasPrefix(token, "heartbeat-") {
			t.Errorf("mode %s, token %s", h.Mode(), token)
		}
		s.wait(time.Second)
		if err := h.Check(context.Background()); err != nil {
			s.soft("%v", err)
		}
		twin := s.as("twin", p)
		twin.DB, twin.Wait = s.dbAt(lenient), 2*time.Second
		if r := <-s.take(context.Background(), twin); !errors.As(r.err, new(*lease.HeldError)) {
			t.Errorf("two holders through a pooler: %v", r.err)
		}
		proven := h.Proven()
		s.alive(h)
		s.crash(h)
		twin.Owner, twin.OnEvent, twin.Wait = "successor", s.log.Hook("successor"), time.Minute
		s.got(s.take(context.Background(), twin), p.TTL)
		s.atLeast("take-over through a pooler", boot()-proven, p.TTL)
	})
}

func TestScenario27FrozenBackend(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		p := ttl(fast(), 3*time.Second)
		h := s.hold(s.as("first", p))
		pid := int(h.GuardPID())
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Skip("left out: this test may not pause the server's process: ", err)
		}
		defer syscall.Kill(pid, syscall.SIGCONT)
		s.lost(h, lease.CodeTooOld, p.Exit)
		var said sync.Map
		o := s.as("standby", p)
		o.Wait = time.Minute
		o.OnEvent = s.log.Hook("standby", func(e lease.Event) { said.Store(e.Text, true) })
		c := s.take(context.Background(), o)
		s.none(c, p.TTL+2*time.Second) // its lock stays for as long as the process exists
		found := false
		for until := time.Now().Add(20 * time.Second); !found && time.Now().Before(until); s.none(c, 100*time.Millisecond) {
			said.Range(func(k, _ any) bool { found = found || strings.Contains(k.(string), "backend"); return true })
		}
		if !found {
			t.Error("the candidate does not say what it waits for")
		}
		begin := boot()
		_ = syscall.Kill(pid, syscall.SIGCONT)
		s.got(c, p.Silence+poll)
		s.atLeast("take-over after the thaw", boot()-begin, p.Silence)
	})
}

// A pause longer than the TTL ends in a reclaim; the paused one changes nothing when it wakes up. (8 and 9 with processes
// that are really stopped: package run.)
func TestScenario09Reclaim(t *testing.T) {
	t.Parallel()
	scenario(t, pgtest.DSN, func(s *scene) {
		p := ttl(fast(), 3*time.Second)
		s.exec(s.sql(), "CREATE TABLE target (last bigint NOT NULL)")
		s.exec(s.sql(), "INSERT INTO target VALUES (0)")
		o := s.as("first", p)
		paused := &pausable{}
		o.Clock = paused
		h := s.hold(o)
		resume := h.Pause()
		paused.stop() // its monitor sees no time pass, as if it did not run
		s.log.End("first", boot())
		from := boot()
		w := s.as("second", p)
		w.Wait = time.Minute
		r := s.got(s.take(context.Background(), w), p.TTL+p.Silence)
		s.atLeast("reclaim", boot()-from, p.TTL+p.Silence)
		s.within("reclaim", boot()-from, p.TTL+p.Silence+500*time.Millisecond)
		if r.h.How() != lease.ByReclaim {
			t.Error(r.h.How())
		}
		s.exec(s.sql(), "UPDATE target SET last = $1 WHERE last <= $1", int64(r.h.Token().Epoch))
		resume()
		paused.resume()
		err := h.Write(context.Background(), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE target SET last = 1000")
			return err
		})
		if !errors.Is(err, lease.ErrLost) {
			t.Errorf("a write of the one that was paused: %v", err)
		}
		if err := h.Do(context.Background(), "effect", func(context.Context, lease.Fence) error { t.Error("acted"); return nil }); !errors.Is(err, lease.ErrLost) {
			t.Errorf("an effect of the one that was paused: %v", err)
		}
		s.lost(h, 0, p.Exit)
		var last int64
		if err := s.sql().QueryRow(context.Background(), "SELECT last FROM target").Scan(&last); err != nil || last != int64(r.h.Token().Epoch) {
			t.Errorf("the target was last written by %d (%v)", last, err)
		}
		s.alive(r.h)
	})
}

// pausable is a clock that can be made to stand still.
type pausable struct {
	mu  sync.Mutex
	at  time.Duration
	off bool
}

func (p *pausable) Now() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.off {
		return p.at
	}
	return boot()
}

func (p *pausable) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.off = boot(), true
}

func (p *pausable) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = false
}
