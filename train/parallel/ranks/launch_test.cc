#include "train/parallel/ranks/launch.h"

#include <gtest/gtest.h>

#include <map>

namespace plimsoll::train::launch_test {
namespace {

using Variables = std::map<std::string, std::string>;

Launch From(const Variables& variables) {
  return LaunchFromEnvironment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

/// What the error says.
std::string Refusal(const Variables& variables) {
  try {
    From(variables);
  } catch (const c10::Error& error) {
    return error.what();
  }
  return "";
}

TEST(Launch, IsAloneWithoutVariables) {
  const Launch launch = From({{"HOME", "/root"}});
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.local_rank, 0);
}

TEST(Launch, IsReadFromTorchrun) {
  const Launch launch = From({{"RANK", "5"},
                              {"WORLD_SIZE", "8"},
                              {"LOCAL_RANK", "1"},
                              {"LOCAL_WORLD_SIZE", "4"},
                              {"MASTER_ADDR", "node7"},
                              {"MASTER_PORT", "1234"},
                              {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                              {"TORCHELASTIC_RESTART_COUNT", "2"},
                              // It may itself have been started by Slurm.
                              {"SLURM_PROCID", "0"},
                              {"SLURM_NTASKS", "2"},
                              {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.address, "node7");
  EXPECT_EQ(launch.port, 1234);
  EXPECT_TRUE(launch.store_is_kept);
  EXPECT_NE(launch.attempt.find('2'), std::string::npos);
}

TEST(Launch, IsReadFromMpi) {
  const Launch open = From({{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(open.rank, 1);
  EXPECT_EQ(open.size, 2);
  // One machine: nobody need say which.
  EXPECT_EQ(open.address, "127.0.0.1");
  const Launch pmi = From({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MASTER_ADDR", "a"}});
  EXPECT_EQ(pmi.rank, 3);
  EXPECT_EQ(pmi.size, 4);
  EXPECT_FALSE(pmi.local_rank);
}

TEST(Launch, IsReadFromSrunButNotFromABatchScript) {
  Variables variables{{"SLURM_PROCID", "6"},
                      {"SLURM_NTASKS", "16"},
                      {"SLURM_LOCALID", "2"},
                      {"SLURM_STEP_NUM_NODES", "4"},
                      {"SLURM_STEP_NODELIST", "gpu[003-006,9],login1"},
                      {"SLURM_JOB_ID", "123456"},
                      {"SLURM_STEP_ID", "0"}};
  const Launch launch = From(variables);
  EXPECT_EQ(launch.rank, 6);
  EXPECT_EQ(launch.size, 16);
  EXPECT_EQ(launch.local_rank, 2);
  EXPECT_EQ(launch.address, "gpu003");
  variables["SLURM_STEP_NODELIST"] = "alpha,beta";
  EXPECT_EQ(From(variables).address, "alpha");
  variables["SLURM_JOB_ID"] = "123457";
  EXPECT_NE(From(variables).port, launch.port) << "two jobs may share a machine";
  variables.erase("SLURM_STEP_ID");
  variables["SLURM_PROCID"] = "0";
  EXPECT_EQ(From(variables).size, 1);
}

TEST(Launch, ErrorsNameTheVariable) {
  EXPECT_NE(Refusal({{"RANK", "0"}}).find("WORLD_SIZE"), std::string::npos);
  EXPECT_NE(Refusal({{"WORLD_SIZE", "2"}}).find("RANK"), std::string::npos);
  EXPECT_NE(Refusal({{"RANK", "one"}, {"WORLD_SIZE", "2"}}).find("\"one\""), std::string::npos);
  EXPECT_NE(Refusal({{"RANK", ""}, {"WORLD_SIZE", "2"}}).find("RANK"), std::string::npos);
  EXPECT_NE(Refusal({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}).find("PMI_RANK is 2"),
            std::string::npos);
  EXPECT_NE(Refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}}).find("MASTER_ADDR"), std::string::npos);
  EXPECT_NE(
      Refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "99999"}})
          .find("MASTER_PORT is 99999"),
      std::string::npos);
  EXPECT_NE(
      Refusal({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}})
          .find("LOCAL_RANK"),
      std::string::npos);
}

}  // namespace
}  // namespace plimsoll::train::launch_test
