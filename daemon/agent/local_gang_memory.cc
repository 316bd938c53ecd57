// The part of LocalGang that says whether there is memory for the members' saves.
#include <memory>
#include <utility>

#include "daemon/agent/client_answers.h"
#include "daemon/agent/local_gang.h"
#include "wire/wire.h"

namespace muster {
namespace {

// A member's questions that may wait for their answers: one whose answer takes long is not waited for.
constexpr uint32_t kMaxAsking = 4;

}  // namespace

void LocalGang::OnAskMemory(Client& client, const wire::AskMemory& question,
                            const std::shared_ptr<const UniqueFd>& memory) {
  if (client.asking == kMaxAsking) return AnswerMemory(client, question, {});
  ++client.asking;
  context_.sampler.Do([weak = weak_from_this(), &loop = context_.loop, grants = context_.memory,
                       share = client.memory, rank = client.rank, question, memory] {
    const Status status = grants->Ask(*share, memory, question.bytes);
    loop.Post([weak, rank, question, memory, status] {
      if (const auto self = weak.lock()) self->MemoryAnswered(rank, question, memory, status);
    });
  });
}

void LocalGang::MemoryAnswered(uint32_t rank, const wire::AskMemory& question,
                               const std::shared_ptr<const UniqueFd>& memory, const Status& status) {
  Client* client = start_ ? ClientOf(rank, start_->generation()) : nullptr;
  if (client == nullptr) return;
  if (client->asking > 0) --client->asking;
  if (!status && status.error().code == Errc::kExhausted) {
    // What it was restored from is in the store too.
    if (auto dropped = held_.DropBefore(rank, client->generation); !dropped.empty()) {
      Let(std::move(dropped));
      return context_.chores->Do([weak = weak_from_this(), mailbox = context_.loop.mailbox(), rank, question,
                                  memory] {
        mailbox->Post([weak, rank, question, memory] {
          const auto self = weak.lock();
          Client* again = self && self->start_ ? self->ClientOf(rank, self->start_->generation()) : nullptr;
          if (again != nullptr) self->OnAskMemory(*again, question, memory);
        });
      });
    }
  }
  AnswerMemory(*client, question, status);
}

void LocalGang::AnswerMemory(const Client& client, const wire::AskMemory& question, const Status& status) {
  wire::MemoryAnswer answer{};
  answer.number = question.number;
  SendResult(*client.connection, wire::Type::kMemoryAnswer, answer,
             status ? wire::kStatusOk : wire::kStatusNoMemory, status ? "" : status.error().message);
}

}  // namespace muster
